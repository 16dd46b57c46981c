"""Is each shard right? Probes, metrics, and the comparison of a shard with its reference."""

from __future__ import annotations

from pytest_ane.fidelity.cases import Case
from pytest_ane.fidelity.comparison import Comparison, Errors, Fidelity
from pytest_ane.fidelity.judge import judge
from pytest_ane.fidelity.measure import measure

__all__ = ["Case", "Comparison", "Errors", "Fidelity", "judge", "measure"]
