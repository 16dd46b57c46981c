"""Compression: did what was asked for happen, and is the package small enough?"""

from __future__ import annotations

import pytest

from pytest_ane.build import Artifact
from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.manifest import Shard
from pytest_ane.mil.records import MLModel
from pytest_ane.plugin.keeper import GateKeeper
from pytest_ane.plugin.recording import Evidence

pytestmark = pytest.mark.gate


def test_compression(
    ane_shard: Shard,
    ane_artifact: Artifact,
    ane_program: MLModel,
    ane_evidence: Evidence,
    ane_gate: GateKeeper,
) -> None:
    """Every weight that was to be compressed is, and the package keeps its budget."""

    def measured() -> CompressionMeasurement:
        return measure(ane_artifact, ane_program, ane_shard.reference)

    found = ane_evidence.of("compression", measured)
    policy = ane_shard.policy.compression
    ane_gate(judge(found, asked=ane_shard.compression, policy=policy, subject=ane_shard.qualified))
