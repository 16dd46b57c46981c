"""Recorded measurements under today's policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.fidelity import Comparison, Fidelity
from pytest_ane.make import Census
from pytest_ane.manifest import Model, Policy, Shard
from pytest_ane.manifest.policy import BehaviourPolicy, CompressionPolicy, FidelityPolicy
from pytest_ane.mlprogram.metrics.logits import Position
from pytest_ane.probes.exact_chain import ShardAlone
from pytest_ane.records.record import Record
from pytest_ane.records.verify import judge
from tests.records.test_verify import FOUND, PLAN

WHERE = "recorded 2026-11-18, Apple M4 Max, macOS 26.1, CPU_AND_NE"
POSITIONS = (Position(1.0, 0.0, True, 0), Position(0.99, 0.01, True, 0))
FIDELITY = Fidelity(
    (Comparison("gaussian", "g", "y", 1, 1.0, (0.98,), (0,), (), (), 1.0, 0.1,
                relative=(0.1,)),), True, {}
)  # fmt: skip
MEASURED: dict[str, Any] = {
    "placement": PLAN,
    "compression": CompressionMeasurement(Census(()), 5_000, (), ()),
    "fidelity": FIDELITY,
    "behaviour": Behaviour(
        (PromptResult("p", POSITIONS, (5,), (5,), (4.0,), " a", " a"),),
        (ShardAlone("L01", "block", 0.1, 0.99),),
        {},
        9,
    ),
}
STRICT = Policy(
    compression=CompressionPolicy(max_bytes=10),
    fidelity=FidelityPolicy(min_cosine=0.99),
    behaviour=BehaviourPolicy(max_kl=0.001),
)
MILD = Policy(behaviour=BehaviourPolicy(min_positions=1))


def recorded(gate: str) -> Record:
    subject = "m" if gate == "behaviour" else "m:L01"
    return replace(FOUND, gate=gate, subject=subject, measurement=MEASURED[gate])


def of(gate: str, policy: Policy) -> Shard | Model:
    shard = Shard(model="m", id="L01", policy=policy)
    return Model(name="m", shards=(shard,), policy=policy) if gate == "behaviour" else shard


@pytest.mark.parametrize("gate", ["placement", "fidelity", "behaviour"])
def test_what_passes_says_where_it_is_from(gate: str) -> None:
    verdict = judge(recorded(gate), of(gate, MILD))
    assert (verdict.gate, verdict.status) == (gate, "passed")
    assert verdict.subject == recorded(gate).subject
    assert verdict.origin == WHERE


@pytest.mark.parametrize("gate", ["compression", "fidelity", "behaviour"])
def test_another_policy_gives_another_verdict(gate: str) -> None:
    assert judge(recorded(gate), of(gate, STRICT)).status == "failed"
    assert judge(recorded(gate), of(gate, Policy())).status != "failed"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"arithmetic": "simulated ANE (h16+)"}, "recorded 2026-11-18, simulated ANE (h16+)"),
        ({"native": "replaced by pytest-ane"}, WHERE.replace("Apple", "replayed Apple")),
    ],
)
def test_what_was_simulated_or_replayed_is_called_so(changes: dict[str, str], shown: str) -> None:
    found = replace(recorded("fidelity"), environment={**FOUND.environment, **changes})
    verdict = judge(found, of("fidelity", Policy()))
    assert verdict.origin == shown
    assert changes.items() <= verdict.provenance.items()
