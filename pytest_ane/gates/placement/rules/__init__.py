"""The rules, each a documented limit of the Neural Engine with its source."""

from __future__ import annotations

from typing import Literal

from pytest_ane.gates.placement.rules._base import OpRule, Outcome, ProgramRule, Rule
from pytest_ane.gates.placement.rules._ops import RULES
from pytest_ane.gates.placement.rules._products import ATTENTION, CONVOLUTIONS, MATMULS
from pytest_ane.gates.placement.rules._shapes import (
    DYNAMIC,
    LIMITS,
    PROGRAM_RULES,
    SIZE_RULE,
    STATES,
)
from pytest_ane.gates.placement.rules._types import COMPRESSED, TYPES

__all__ = ["ALL_RULES", "OP_RULES", "PROGRAM_RULES", "OpRule", "Outcome", "ProgramRule", "Rule"]

OP_RULES: tuple[OpRule, ...] = (
    *RULES, *TYPES, *LIMITS, *MATMULS, *CONVOLUTIONS, *COMPRESSED, *DYNAMIC, *ATTENTION, *STATES,
)  # fmt: skip
"""In the order in which they are told of an operation."""
ALL_RULES: tuple[Rule, ...] = tuple(
    sorted((*OP_RULES, *PROGRAM_RULES, SIZE_RULE), key=lambda rule: (rule.id, rule.outcome))
)


def find(rule_id: str, outcome: Outcome | Literal["allowed"]) -> Rule | None:
    """The rule of an id and outcome, if there is one; what a policy allows was ineligible."""
    given = "ineligible" if outcome == "allowed" else outcome
    return next((r for r in ALL_RULES if (r.id, r.outcome) == (rule_id, given)), None)
