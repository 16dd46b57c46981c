"""Did the compression that was asked for happen, and is the package small enough?"""

from __future__ import annotations

from pytest_ane.gates.compression.judge import judge
from pytest_ane.gates.compression.measure import CompressionMeasurement, measure

__all__ = ["CompressionMeasurement", "judge", "measure"]
