"""Does the whole stack still say the same? Golden prompts through every shard, and greedy text."""

from __future__ import annotations

from pytest_ane.gates.behaviour.judge import judge
from pytest_ane.gates.behaviour.measure import Behaviour, measure

__all__ = ["Behaviour", "judge", "measure"]
