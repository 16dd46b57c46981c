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
    ane_shard: Shard,
    ane_artifact: Artifact,
    ane_backend: Backend,
    ane_evidence: Evidence,
    ane_gate: GateKeeper,
) -> None:
    """Every operation runs on the ANE; or, without a device, no rule keeps one off it."""

    def measured() -> Placement:
        program = read_model(ane_artifact.path)
        return measure(ane_backend, ane_artifact.path, program, size_bytes=ane_artifact.size)

    found = ane_evidence.of("placement", measured)
    ane_gate(judge(found, subject=ane_shard.qualified, os=ane_shard.policy.placement.os))
