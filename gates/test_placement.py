"""Placement: where will it run? Core ML's plan says on a Mac, rules forecast it elsewhere."""

from __future__ import annotations

import pytest

from pytest_ane.backends import Backend
from pytest_ane.build import Artifact
from pytest_ane.gates.placement import Placement, judge, measure
from pytest_ane.manifest import Shard
from pytest_ane.mil import read_model
from pytest_ane.plugin.keeper import GateKeeper
from pytest_ane.plugin.recording import Evidence

pytestmark = pytest.mark.gate


def test_placement(
    shard: Shard, artifact: Artifact, backend: Backend, evidence: Evidence, gate: GateKeeper
) -> None:
    """Every operation runs on the ANE; or, without a device, no rule keeps one off it."""

    def measured() -> Placement:
        program = read_model(artifact.path)
        return measure(backend, artifact.path, program, size_bytes=artifact.size)

    found = evidence.of("placement", measured)
    gate(judge(found, subject=shard.qualified, os=shard.policy.placement.os))
