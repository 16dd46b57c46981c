"""Fidelity: is each shard right? Cosine against its reference, on seeded and on real inputs."""

from __future__ import annotations

import pytest

from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.manifest import Shard
from pytest_ane.plugin.outcome import VerdictRecorder
from pytest_ane.plugin.recording import MeasurementSource

pytestmark = pytest.mark.gate


def test_fidelity(
    ane_shard: Shard, ane_evidence: MeasurementSource, ane_gate: VerdictRecorder
) -> None:
    """What is in the file computes what the reference computes, on every probe and position."""
    measurement = ane_evidence.of("fidelity")
    ane_gate(FIDELITY.judge(measurement, ane_shard.policy.fidelity, ane_shard))
