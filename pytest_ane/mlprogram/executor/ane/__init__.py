"""The arithmetic of the ANE from M4 on (h16+), operation by operation, as far as it is known.

`simulation.rules()` has a rule for each operation that is known, with its grade: recorded, fitted
or inferred. All else is unknown and computes as the program's types say. One file per family:

- `fp16`: how inputs are read, and results rounded; add, sub, mul;
- `accumulator`, `kernel`: sums of products in Q15.16, and what they lose;
- `products`: convolutions 1x1, linear, matmul; constant operands, prepared once; 8-bit ones;
- `activations`: functions by look-up and interpolation, and what is composed of them;
- `simulation`: a program's operations bound to these rules, and counted by grade.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Grade(str, Enum):
    """Where a rule comes from.

    Attributes:
        RECORDED: reproduces recorded device outputs, all of them bit for bit.
        FITTED: reproduces statistics of whole recorded curves; single outputs may differ.
        INFERRED: follows from other rules or from statistics; nothing was recorded on h16+.
        UNKNOWN: no rule; computed as the program's types say.
    """

    RECORDED = "recorded"
    FITTED = "fitted"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Rule:
    """What computes an operation as the ANE does.

    Attributes:
        grade: of the result, the worst of its parts.
        compute: takes the operation's parameters by MIL's names, fp16 tensors as float32 that hold
            fp16 numbers; gives fp16 numbers as float32, or None for a case it does not cover.
    """

    grade: Grade
    compute: Callable[..., Any]


REGISTERED: dict[str, Rule] = {}
"""Rules by operation, of the modules that are imported; `simulation` imports them all."""


def rule(grade: Grade, *ops: str) -> Callable[[F], F]:
    """Register a function as the rule of these operations."""

    def decorate(function: F) -> F:
        REGISTERED.update(dict.fromkeys(ops, Rule(grade, function)))
        return function

    return decorate
