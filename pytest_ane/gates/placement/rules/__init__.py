"""The rules, each a documented limit of the Neural Engine with its source."""

from __future__ import annotations

from typing import Literal

from pytest_ane.gates.placement.rules import (
    _ops as ops,
)
from pytest_ane.gates.placement.rules import (
    _products as products,
)
from pytest_ane.gates.placement.rules import (
    _shapes as shapes,
)
from pytest_ane.gates.placement.rules import (
    _types as types,
)
from pytest_ane.gates.placement.rules._base import (
    Grade,
    OpRule,
    Outcome,
    ProgramRule,
    Rule,
    Subject,
)
from pytest_ane.gates.placement.rules._shapes import SIZE_RULE, limit_bytes, too_large

__all__ = [
    "ALL_RULES",
    "OP_RULES",
    "PROGRAM_RULES",
    "SIZE_RULE",
    "Grade",
    "OpRule",
    "Outcome",
    "ProgramRule",
    "Rule",
    "Subject",
    "find",
    "limit_bytes",
    "too_large",
]

OP_RULES: tuple[OpRule, ...] = (
    *ops.RULES, *types.TYPES, *shapes.LIMITS, *products.MATMULS, *products.CONVOLUTIONS,
    *types.COMPRESSED, *shapes.DYNAMIC, *products.ATTENTION, *shapes.STATES,
)  # fmt: skip
"""In the order in which they are told of an operation."""
PROGRAM_RULES: tuple[ProgramRule, ...] = shapes.PROGRAM_RULES
ALL_RULES: tuple[Rule, ...] = tuple(
    sorted((*OP_RULES, *PROGRAM_RULES, SIZE_RULE), key=lambda rule: (rule.id, rule.outcome))
)


def find(rule_id: str, outcome: Outcome | Literal["allowed"]) -> Rule | None:
    """The rule of an id and outcome; `None` where this version has none of that name.

    What a policy allows was ineligible.
    """
    given = "ineligible" if outcome == "allowed" else outcome
    return next((r for r in ALL_RULES if (r.id, r.outcome) == (rule_id, given)), None)
