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
    ane_shard: Shard,
    ane_artifact: Artifact,
    ane_cases: Callable[[], list[Case]],
    ane_backend: Backend,
    ane_evidence: Evidence,
    ane_gate: GateKeeper,
) -> None:
    """What is in the file computes what the reference computes, on every probe and position."""

    def measured() -> Fidelity:
        return measure(
            ane_backend.load(ane_artifact.path),
            ane_cases(),
            compared=ane_shard.reference != "none",
            provenance=ane_backend.provenance() | {"artifact": ane_artifact.digest},
        )

    found = ane_evidence.of("fidelity", measured)
    ane_gate(judge(found, ane_shard.policy.fidelity, ane_shard.qualified))
