"""A test for each arithmetic, and what a verdict says of the ANE's."""

from __future__ import annotations

import pytest

from pytest_ane.gates.arithmetics import in_arithmetic
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Figure, Finding, Verdict
from pytest_ane.manifest import Policy, Shard
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares

FINDING = Finding("failed", "below min-cosine", figure="cosine.min")
TYPED = Verdict("fidelity", "m:L00", (Figure("cosine.min", 0.96),), (FINDING,))
RULES = RuleShares({"recorded": 3, "unknown": 1}, {"recorded": 100}, unknown=("softmax",))
BOTH: tuple[Arithmetic, ...] = ("typed", "ane")


def ids(gate: str, shard: Shard, *, simulates: bool = True) -> list[str]:
    known = GATES[gate]
    return [known.test(subject).id for subject in known.subjects(shard, simulates=simulates)]


def test_the_figures_are_called_alike_and_the_basis_says_which_arithmetic() -> None:
    made = in_arithmetic(TYPED, "ane", RULES, [Figure("cost.rms", 0.01)])
    assert made.basis == "simulated ANE (h16+)"
    assert made.values == {
        "cosine.min": 0.96,
        "cost.rms": 0.01,
        "products": "100.0% recorded",
        "products.recorded": 1.0,
        "products.fitted": 0.0,
        "products.inferred": 0.0,
        "products.unknown": 0.0,
        "operations": "75.0% recorded, 25.0% unknown",
        "operations.recorded": 0.75,
        "operations.fitted": 0.0,
        "operations.inferred": 0.0,
        "operations.unknown": 0.25,
    }
    assert [f.reason for f in made.findings] == [
        "below min-cosine",
        "simulated ANE (h16+): 25% of the operations have no known rule and ran as typed: softmax",
    ]
    assert in_arithmetic(TYPED, "typed", RuleShares(), ()) == TYPED


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ("fidelity", ["m:L00", "m:L00-ane"]),
        ("placement", ["m:L00"]),
        ("compression", ["m:L00"]),
        ("hazards", ["m:L00"]),
    ],
)
def test_each_arithmetic_has_a_test_where_it_matters(gate: str, expected: list[str]) -> None:
    assert ids(gate, Shard(model="m", id="L00", arithmetic=BOTH)) == expected


@pytest.mark.parametrize("arithmetic", [("typed",), ("ane",), BOTH])
def test_a_device_and_its_evidence_have_one(arithmetic: tuple[Arithmetic, ...]) -> None:
    shard = Shard(model="m", id="L00", arithmetic=arithmetic)
    assert ids("fidelity", shard, simulates=False) == ["m:L00"]
    policy = Policy(fidelity=FidelityPolicy(require="device"))
    assert ids("fidelity", shard.model_copy(update={"policy": policy})) == ["m:L00"]
