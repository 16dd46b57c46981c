"""The arithmetics of the CPU executor, and what their numbers are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Arithmetic: TypeAlias = Literal["typed", "ane"]
"""`typed`: float32 inside, rounded as types say; `ane`: as the ANE of M4 and later, where known."""

ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
GENERATION = "h16+"
"""Chips whose arithmetic `ane` is: M4 and later."""
SIMULATED = f"simulated ANE ({GENERATION})"
"""What a number of arithmetic `ane` is called wherever it is shown: it is never measured."""
GRADES = ("recorded", "fitted", "inferred", "unknown")
"""How well a rule of arithmetic `ane` is known, the best first: the values of `Grade`."""
_OTHERS = r"(ane\W*)?(h1[345]\w*|m[123])"
"""Generations whose sums differ, by their codes or by the chips that people know."""


def read_arithmetics(words: str) -> tuple[Arithmetic, ...]:
    """One arithmetic, or both separated by a comma."""
    return tuple(dict.fromkeys(map(read_arithmetic, words.split(","))))


def read_arithmetic(word: str) -> Arithmetic:
    """`typed` or `ane`; `ValueError`, the end of a sentence for people, for another word."""
    word = word.strip()
    if word in ARITHMETICS:
        return word
    if re.fullmatch(_OTHERS, word, re.I):
        raise ValueError(
            "h13 to h15 (M1 to M3) sum in other ways than M4 and later, and their rules are not "
            f"known; use 'ane', which is {GENERATION}"
        )
    raise ValueError("must be 'typed' or 'ane'")


def label(arithmetic: Arithmetic) -> str:
    """What numbers of an arithmetic are called: `typed`, or `simulated ANE (h16+)`."""
    return SIMULATED if arithmetic == "ane" else arithmetic


@dataclass(frozen=True)
class RuleShares:
    """By rules of which grades a program ran in arithmetic `ane`, and which outputs overflowed.

    Attributes:
        operations: runs of operations by grade; those that only move numbers are not counted.
        products: multiply-accumulates by grade.
        unknown: kinds of operations of which some ran without a rule, so as in `typed`.
        infinite: outputs of sums that overflowed, by operation's name.
        may_overflow: outputs that overflow in some orders of summation only, by operation's name.

    Raises:
        ValueError: a grade that is none of `GRADES`, or a count below 0.
    """

    operations: Mapping[str, int] = field(default_factory=dict)
    products: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    infinite: Mapping[str, int] = field(default_factory=dict)
    may_overflow: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if others := {*self.operations, *self.products} - {*GRADES}:
            raise ValueError(f"{min(others)!r} is no grade of rules ({', '.join(GRADES)})")
        counts = (self.operations, self.products, self.infinite, self.may_overflow)
        if any(count < 0 for of in counts for count in of.values()):
            raise ValueError("a count is below 0")

    @property
    def shares_of_operations(self) -> dict[str, float]:
        """Each grade's share of the operations that ran; empty where none did."""
        return _shares(self.operations)

    @property
    def shares_of_products(self) -> dict[str, float]:
        """Each grade's share of the multiply-accumulates; empty where there were none."""
        return _shares(self.products)

    def __add__(self, other: RuleShares) -> RuleShares:
        """Both together: parts of a pipeline, or shards of a stack."""
        return RuleShares(
            _sum(self.operations, other.operations),
            _sum(self.products, other.products),
            tuple(sorted({*self.unknown, *other.unknown})),
            _sum(self.infinite, other.infinite),
            _sum(self.may_overflow, other.may_overflow),
        )


def _sum(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(a) + Counter(b))


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {grade: counts.get(grade, 0) / total for grade in GRADES} if total else {}
