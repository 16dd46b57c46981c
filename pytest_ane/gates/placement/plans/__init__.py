"""Recorded placement plans: what other tools wrote down of Core ML's plan, as one record.

Only the preferred device is placement. `summarise` and `judge` say what a plan proves.
"""

from __future__ import annotations

from pytest_ane.gates.placement.plans.join import join
from pytest_ane.gates.placement.plans.read import parse_plan, read_plan
from pytest_ane.gates.placement.plans.record import (
    Message,
    Plan,
    PlannedFunction,
    PlannedOperation,
    Tally,
)
from pytest_ane.gates.placement.plans.summary import Summary, explain, judge, summarise

__all__ = [
    "Message",
    "Plan",
    "PlannedFunction",
    "PlannedOperation",
    "Summary",
    "Tally",
    "explain",
    "join",
    "judge",
    "parse_plan",
    "read_plan",
    "summarise",
]
