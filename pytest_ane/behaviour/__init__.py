"""Does the whole stack still say the same? Golden prompts through every shard, and greedy text."""

from __future__ import annotations

from pytest_ane.behaviour.chain import Chain
from pytest_ane.behaviour.golden import Golden, record_golden
from pytest_ane.behaviour.judge import judge
from pytest_ane.behaviour.measure import Behaviour, measure

__all__ = ["Behaviour", "Chain", "Golden", "judge", "measure", "record_golden"]
