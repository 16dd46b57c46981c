"""Compression: did what was asked for happen, and is the package small enough?"""

from __future__ import annotations

import pytest

from pytest_ane.build import Artifact
from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.manifest import Shard
from pytest_ane.mil.records import Model
from pytest_ane.plugin.keeper import GateKeeper
from pytest_ane.plugin.recording import Evidence

pytestmark = pytest.mark.gate


def test_compression(
    shard: Shard, artifact: Artifact, program: Model, evidence: Evidence, gate: GateKeeper
) -> None:
    """Every weight that was to be compressed is, and the package keeps its budget."""

    def measured() -> CompressionMeasurement:
        return measure(artifact, program, shard.reference)

    found = evidence.of("compression", measured)
    policy = shard.policy.compression
    gate(judge(found, asked=shard.compression, policy=policy, subject=shard.qualified))
