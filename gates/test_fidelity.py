"""Fidelity: is each shard right? Cosine against its reference, on seeded and on real inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ane.backends import Backend
from pytest_ane.build import Artifact
from pytest_ane.gates.fidelity import Fidelity, judge, measure
from pytest_ane.manifest import Shard
from pytest_ane.plugin.keeper import GateKeeper
from pytest_ane.plugin.recording import Evidence
from pytest_ane.probes.cases import Case

pytestmark = pytest.mark.gate


def test_fidelity(
    shard: Shard,
    artifact: Artifact,
    cases: Callable[[], list[Case]],
    backend: Backend,
    evidence: Evidence,
    gate: GateKeeper,
) -> None:
    """What is in the file computes what the reference computes, on every probe and position."""

    def measured() -> Fidelity:
        return measure(
            backend.load(artifact.path),
            cases(),
            compared=shard.reference != "none",
            provenance=backend.provenance() | {"artifact": artifact.digest},
        )

    found = evidence.of("fidelity", measured)
    gate(judge(found, shard.policy.fidelity, shard.qualified))
