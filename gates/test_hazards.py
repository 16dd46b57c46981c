"""Hazards: does the ANE's own arithmetic break it? Overflow, dropped products, tables, cliffs."""

from __future__ import annotations

import pytest

from pytest_ane.gates.hazards import HAZARDS
from pytest_ane.manifest import Shard
from pytest_ane.plugin.outcome import VerdictRecorder
from pytest_ane.plugin.recording import MeasurementSource

pytestmark = pytest.mark.gate


def test_hazards(
    ane_shard: Shard, ane_evidence: MeasurementSource, ane_gate: VerdictRecorder
) -> None:
    """No sum overflows, no infinity is decoded, and little is lost, on every probe."""
    measurement = ane_evidence.of("hazards")
    ane_gate(HAZARDS.judge(measurement, ane_shard.policy.hazards, ane_shard))
