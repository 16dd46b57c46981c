"""The rules, each a documented limit of the Neural Engine with its source: see `rules.toml`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Literal

from pytest_ane.gates.placement.rules import _ops, _products, _shapes, _types
from pytest_ane.gates.placement.rules._base import OpRule, Outcome, ProgramRule, Rule, kinds
from pytest_ane.manifest.base import loads

__all__ = ["ALL_RULES", "OP_RULES", "PROGRAM_RULES", "OpRule", "Outcome", "ProgramRule", "Rule"]

_WHY = _ops.WHY | _types.WHY | _shapes.WHY | _products.WHY
"""By id, or id and outcome: when a rule applies to an operation, where its type does not tell."""


def _made(id: str, ops: str = "", of: str = "op", **fields: Any) -> Rule:
    if of == "package":
        return Rule(id=id, **fields)
    if of == "program":
        return ProgramRule(id=id, why=_shapes.SUBJECTS[id], **fields)
    why = _WHY.get(f"{id} {fields.get('outcome', 'ineligible')}", _WHY.get(id))
    return OpRule(id=id, ops=kinds(ops), why=why, **fields)


_MADE = [
    _made(**e) for e in loads(files(__package__).joinpath("rules.toml").read_text("utf-8"))["rule"]
]
OP_RULES = tuple(rule for rule in _MADE if isinstance(rule, OpRule))
"""In the order in which they are told of an operation."""
PROGRAM_RULES = tuple(rule for rule in _MADE if isinstance(rule, ProgramRule))
(SIZE_RULE,) = (rule for rule in _MADE if not isinstance(rule, OpRule | ProgramRule))
ALL_RULES = tuple(sorted(_MADE, key=lambda rule: (rule.id, rule.outcome)))


def find(rule_id: str, outcome: Outcome | Literal["allowed"]) -> Rule | None:
    """The rule of an id and outcome; `None` where this version has none of that name.

    What a policy allows was ineligible.
    """
    given = "ineligible" if outcome == "allowed" else outcome
    return next((r for r in ALL_RULES if (r.id, r.outcome) == (rule_id, given)), None)
