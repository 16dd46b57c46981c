"""The verdict: its status and its figures follow from what it carries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.arithmetics import in_arithmetic
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import (
    Column,
    Figure,
    Finding,
    Table,
    Verdict,
    Where,
    loosened,
    nothing,
)
from pytest_ane.manifest import Policy, Shard
from pytest_ane.manifest.policy import (
    BehaviourPolicy,
    CompressionPolicy,
    FidelityPolicy,
    HazardsPolicy,
)
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares


@pytest.mark.parametrize(
    ("severities", "status"),
    [
        ((), "passed"),
        (("note", "warned"), "passed"),
        (("unproven", "note"), "unproven"),
        (("unproven", "failed", "warned"), "failed"),
    ],
)
def test_the_gravest_finding_is_the_status(severities: tuple[Any, ...], status: str) -> None:
    verdict = Verdict("g", "m:L01", findings=tuple(Finding(s, "It is so") for s in severities))
    assert verdict.status == status
    grave = [s for s in severities if s in ("failed", "unproven")]
    assert [finding.severity for finding in verdict.reasons] == grave
    assert len(verdict.warnings) == severities.count("warned")


@pytest.mark.parametrize(
    ("value", "good", "passes"),
    [
        (0.97, "above", True), (0.96, "above", False), (math.nan, "above", False),
        (0.97, "below", True), (0.98, "below", False), (math.nan, "below", False),
    ],
)  # fmt: skip
def test_a_figure_and_its_limit(value: float, good: Any, passes: bool) -> None:
    assert Figure("f", value, limit=0.97, good=good).passes is passes
    assert Figure("f", value).passes


def test_the_least_headroom_decides_and_the_most_particular_place_is_named() -> None:
    assert Figure("f", 0.98, limit=0.97, good="above").headroom == pytest.approx(0.01 / 0.97)
    assert Figure("f", 0.5, limit=0.0, good="below").headroom == 0.5
    assert Figure("f", 0.5).headroom == math.inf
    assert Where(probe="p", output="y").noun == "probe"
    assert Where(op="o", weight="w").name == "w"
    assert (Where().noun, Where().name) == ("", "")
    with pytest.raises(ValueError, match="has not 1 cells"):
        Table("t", (Column("a"),), ((1, 2),))
    verdict = nothing("fidelity", "m:L01", "Nothing was compared", "add probes")
    assert (verdict.status, verdict.reasons[0].remedy) == ("unproven", "add probes")


def test_numbers_of_numpy_become_python_s() -> None:
    """A worker of pytest-xdist cannot send others."""
    figure = Figure("a", np.float64(0.5), limit=np.float32(0.25), of=np.int64(3))
    table = Table("t", (Column("a"), Column("b")), ((np.float32(0.5), "x"),))
    numbers = (figure.value, figure.limit, figure.of, table.rows[0][0])
    assert [type(number) for number in numbers] == [float, float, int, float]
    assert numbers == (0.5, 0.25, 3, 0.5)


@pytest.mark.parametrize(
    ("policy", "looser"),
    [
        (FidelityPolicy(), {}),
        (FidelityPolicy(min_cosine=0.99, max_algebra=0.01), {}),
        (FidelityPolicy(min_cosine=0.9), {"min_cosine": "at least 0.9, default 0.97"}),
        (FidelityPolicy(max_non_finite=0.1), {"max_non_finite": "at most 0.1, default 0"}),
        (HazardsPolicy(warn_table_error=0.5), {"warn_table_error": "at most 0.5, default 0.01"}),
        (BehaviourPolicy(min_positions=8, min_kendall=-1, max_perplexity_increase=1), {
            "min_positions": "at least 8, default 32", "min_kendall": "at least -1, default 0.9"}),
        (CompressionPolicy(max_weight_error=2), {"max_weight_error": "at most 2, default 1.25"}),
    ],
)  # fmt: skip
def test_what_a_policy_asks_less_of_than_the_default(policy: Any, looser: dict[str, str]) -> None:
    figures = [*loosened(policy)]
    assert {f.name.removeprefix("looser."): f.value for f in figures} == looser
    assert all(f.shown and f.label == f.name[7:].replace("_", "-") for f in figures)


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
    nothing = {f"{of}.{grade}": 0.0 for of in ("products", "operations")
               for grade in ("fitted", "inferred", "unknown")}  # fmt: skip
    assert made.values == nothing | {
        "cosine.min": 0.96, "cost.rms": 0.01, "products": "100.0% recorded",
        "products.recorded": 1.0, "operations": "75.0% recorded, 25.0% unknown",
        "operations.recorded": 0.75, "operations.unknown": 0.25,
    }  # fmt: skip
    assert [f.reason for f in made.findings] == [
        "below min-cosine",
        "simulated ANE (h16+): 25% of the operations have no known rule and ran as typed: softmax",
    ]
    assert in_arithmetic(TYPED, "typed", RuleShares(), ()) == TYPED


@pytest.mark.parametrize(
    ("gate", "arithmetic", "simulates", "expected"),
    [
        ("fidelity", BOTH, True, ["m:L00", "m:L00-ane"]),
        *((gate, BOTH, True, ["m:L00"]) for gate in ("placement", "compression", "hazards")),
        # A device, whatever it computes in, and its evidence have one.
        *(("fidelity", each, False, ["m:L00"]) for each in (("typed",), ("ane",), BOTH)),
    ],
)
def test_each_arithmetic_has_a_test_where_it_matters(
    gate: str, arithmetic: tuple[Arithmetic, ...], simulates: bool, expected: list[str]
) -> None:
    shard = Shard(model="m", id="L00", arithmetic=arithmetic)
    assert ids(gate, shard, simulates=simulates) == expected
    policy = Policy(fidelity=FidelityPolicy(require="device"))
    assert ids("fidelity", shard.model_copy(update={"policy": policy})) == ["m:L00"]
