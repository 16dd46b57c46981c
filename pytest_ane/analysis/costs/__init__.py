"""What a program costs: bytes and multiply-accumulates of every operation at a given T."""

from __future__ import annotations

from pytest_ane.analysis.costs.program import count_costs
from pytest_ane.analysis.costs.records import Costs, OpCost

__all__ = ["Costs", "OpCost", "count_costs"]
