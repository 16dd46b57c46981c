"""Is each shard right? The comparison of its outputs with its reference's."""

from __future__ import annotations

from pytest_ane.gates.fidelity.comparison import Comparison, Errors, Fidelity
from pytest_ane.gates.fidelity.judge import judge
from pytest_ane.gates.fidelity.measure import measure

__all__ = ["Comparison", "Errors", "Fidelity", "judge", "measure"]
