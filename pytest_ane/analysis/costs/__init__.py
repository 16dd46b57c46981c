"""The costs of a program: bytes and multiply-accumulates of every operation at a given T."""

from __future__ import annotations

from pytest_ane.analysis.costs.count import count_costs
from pytest_ane.analysis.costs.records import Costs, OpCost
from pytest_ane.analysis.costs.shapes import largest_tokens

__all__ = ["Costs", "OpCost", "count_costs", "largest_tokens"]
