"""Fidelity: is each shard right? Cosine against its reference, on seeded and on real inputs."""

from __future__ import annotations

import pytest

from pytest_ane.backends import Backend
from pytest_ane.build import Artifact
from pytest_ane.fidelity import Case, judge, measure
from pytest_ane.manifest import Shard
from pytest_ane.plugin.keeper import GateKeeper

pytestmark = pytest.mark.gate


def test_fidelity(
    shard: Shard, artifact: Artifact, reference: list[Case], backend: Backend, gate: GateKeeper
) -> None:
    """What is in the file computes what the reference computes, on every probe and position."""
    found = measure(
        backend.load(artifact.path),
        reference,
        compared=shard.reference != "none",
        provenance=backend.provenance() | {"artifact": artifact.digest},
    )
    gate(judge(found, shard.policy.fidelity, shard.qualified))
