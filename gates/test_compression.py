"""Compression: did what was asked for happen, and is the package small enough?"""

from __future__ import annotations

import pytest

from pytest_ane.gates.compression import COMPRESSION
from pytest_ane.manifest import Shard
from pytest_ane.plugin.outcome import VerdictRecorder
from pytest_ane.plugin.recording import MeasurementSource

pytestmark = pytest.mark.gate


def test_compression(
    ane_shard: Shard, ane_evidence: MeasurementSource, ane_gate: VerdictRecorder
) -> None:
    """Every weight that was to be compressed is, and the package keeps its budget."""
    measurement = ane_evidence.of("compression")
    ane_gate(COMPRESSION.judge(measurement, ane_shard.policy.compression, ane_shard))
