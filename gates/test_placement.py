"""Placement: where will it run? Core ML's plan says on a Mac, rules forecast it elsewhere."""

from __future__ import annotations

import pytest

from pytest_ane.gates.placement import PLACEMENT
from pytest_ane.manifest import Shard
from pytest_ane.plugin.outcome import VerdictRecorder
from pytest_ane.plugin.recording import MeasurementSource

pytestmark = pytest.mark.gate


def test_placement(
    ane_shard: Shard, ane_evidence: MeasurementSource, ane_gate: VerdictRecorder
) -> None:
    """Every operation runs on the ANE; or, without a device, no rule keeps one off it."""
    measurement = ane_evidence.of("placement")
    ane_gate(PLACEMENT.judge(measurement, ane_shard.policy.placement, ane_shard))
