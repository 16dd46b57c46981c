"""Recorded placement plans: what other tools wrote down of Core ML's plan, as one record.

Only the preferred device is placement. `summarise` says what a plan proves.
"""

from pytest_ane.gates.placement.plans._read import parse_plan, read_plan
from pytest_ane.gates.placement.plans._record import (
    Message,
    Plan,
    PlannedFunction,
    PlannedOperation,
    Tally,
)
from pytest_ane.gates.placement.plans.join import Summary, join, plain, summarise

__all__ = [
    "Message", "Plan", "PlannedFunction", "PlannedOperation", "Summary", "Tally", "join",
    "parse_plan", "plain", "read_plan", "summarise",
]  # fmt: skip
