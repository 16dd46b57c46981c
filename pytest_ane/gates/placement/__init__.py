"""Placement: which operations of a program the Neural Engine can take, and on what authority.

The forecast applies documented rules to the program and runs anywhere. It says `ineligible` or
`eligible`; where an op really runs is for a plan recorded on a Mac to say.
"""

from __future__ import annotations

from pytest_ane.gates.placement.forecast import Finding, Forecast, forecast
from pytest_ane.gates.placement.measure import Placement, judge, measure
from pytest_ane.gates.placement.text import explain

__all__ = ["Finding", "Forecast", "Placement", "explain", "forecast", "judge", "measure"]
