"""What a measurement leaves out, which the judges of what is in it do not miss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.gates.base import Subject
from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.behaviour._embeddings import Embeddings, Ranking, TextResult
from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.gates.fidelity import Comparison, Fidelity
from pytest_ane.gates.fidelity._records import Covered
from pytest_ane.gates.placement.plans import Message, Plan, PlannedFunction, PlannedOperation, Tally
from pytest_ane.gates.registry import GATES
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Probes, Prompt, Shard
from pytest_ane.mlprogram.metrics.logits import Position
from pytest_ane.probes.error_budget import Error, ErrorBudget
from tests.mlprogram.packages import doubling
from tests.records.test_verify import FOUND, PLAN

SHARD = Shard(model="m", id="L01", probes=Probes(kinds=("gaussian", "captured"), count=1))
SEEDED = Comparison("gaussian", "g", "y", 3, 1.0, (0.9, 0.8), (0, 2), (1,), (), 1.0, 0.1,
                    relative=(0.1, 0.1))  # fmt: skip
CAPTURED = replace(SEEDED, kind="captured", probe="c", length=2, positions=(5, 6), both_zero=())
BUDGET = ErrorBudget(Error(0.1, 0.1), Error(0.1, 0.1), None)
POSITION = Position(1.0, 0.0, True, 0)
PROMPT = PromptResult("p", (POSITION, POSITION), (5,), (5,), (4.0,), " a", " a")


def lack(gate: str, measurement: Any, subject: Subject, package: Path | None = None) -> str:
    artifact = Artifact(package) if package else None
    return next(GATES[gate].lacks(measurement, subject, FOUND.environment, artifact), "")


def of_plan(plan: Plan) -> str:
    return lack("placement", plan, SHARD)


def of_fidelity(
    *found: Comparison, compared: bool = True, shard: Shard = SHARD, **more: Any
) -> str:
    measured = Fidelity(found, compared, {}, BUDGET, interface=(), coverage=(), **more)
    return lack("fidelity", measured, shard)


def of_behaviour(*found: PromptResult, asked: Prompt) -> str:
    model = Model(name="m", shards=(SHARD,), prompts=(asked,))
    return lack("behaviour", Behaviour(found, (), {}, 9), model)


def test_whole_measurements() -> None:
    assert of_plan(PLAN) == ""
    assert of_fidelity(SEEDED, CAPTURED) == ""
    assert of_behaviour(PROMPT, asked=Prompt(name="p", ids=(1, 2), greedy=1)) == ""


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, source="counts"),
        replace(PLAN, tallies=(Tally(None, 9, 9),)),
        replace(PLAN, messages=(Message("a", "b", False, 1),)),
    ],
)
def test_counts_and_logs(plan: Plan) -> None:
    assert of_plan(plan) == "holds counts or a log, not Core ML's plan alone"


def test_a_plan_without_names() -> None:
    functions = (PlannedFunction("main", (PlannedOperation("", "conv", "ANE"),)),)
    for found in (functions, ()):
        assert of_plan(replace(PLAN, functions=found)) == "holds a plan that names no operation"


def test_a_plan_for_other_compute_units() -> None:
    assert of_plan(replace(PLAN, compute_units="ALL")) == (
        "holds a plan for ALL, and was recorded with CPU_AND_NE"
    )
    assert "unknown compute units" in of_plan(replace(PLAN, compute_units=""))


def test_fidelity_without_a_reference() -> None:
    assert of_fidelity(SEEDED, compared=False) == "compares with no reference"
    alone = SHARD.model_copy(update={"reference": "none"})
    says = "does not say whether outputs depend on the input"
    assert of_fidelity(SEEDED, compared=False, shard=alone) == says
    assert of_fidelity(SEEDED, compared=False, shard=alone, unmoved=()) == ""


def test_fidelity_of_states_without_a_long_probe() -> None:
    probes = Probes(kinds=("gaussian",), count=1, lengths=(3, 8))
    shard = SHARD.model_copy(update={"probes": probes})
    measured = (SEEDED, replace(SEEDED, kind="long", probe="long, 3 keys"))
    assert of_fidelity(*measured, shard=shard) == ""
    states = (Covered("state k_cache", "carried over up to 8 calls"),)
    held = Fidelity(measured, True, {}, BUDGET, interface=(), coverage=states)
    assert lack("fidelity", held, shard) == "has no probe of 8 keys"


def test_fidelity_without_an_error_budget() -> None:
    unsplit = Fidelity((SEEDED, CAPTURED), True, {}, interface=(), coverage=())
    assert lack("fidelity", unsplit, SHARD) == "has no error budget"
    own = SHARD.model_copy(update={"artifact": Path("x.mlpackage")})
    assert lack("fidelity", unsplit, own) == ""


def test_fewer_probes() -> None:
    assert of_fidelity(CAPTURED) == "has 0 gaussian probes, and at least 1 were asked"
    two = SHARD.model_copy(update={"probes": Probes(kinds=("gaussian",), count=2)})
    assert of_fidelity(SEEDED, shard=two).startswith("has 1 gaussian probes, and at least 2 ")
    assert of_fidelity(SEEDED, replace(SEEDED, probe="h"), shard=two) == ""
    massive = SHARD.model_copy(update={"probes": Probes(kinds=("massive",)), "family": "llama"})
    assert of_fidelity(SEEDED, shard=massive) == "has 0 massive probes, and at least 3 were asked"
    assert of_fidelity(SEEDED, shard=massive.model_copy(update={"family": None})) == ""


@pytest.mark.parametrize(
    ("cosines", "positions"), [((0.9,), (0,)), ((0.9,), (2,)), ((), ()), ((0.9, 0.9), (2, 4))]
)
def test_fewer_positions(cosines: tuple[float, ...], positions: tuple[int, ...]) -> None:
    fewer = replace(SEEDED, cosines=cosines, positions=positions, relative=cosines)
    assert of_fidelity(fewer) == "leaves out positions of g"
    # An output that the reference does not have stands beside one that it has.
    other = replace(SEEDED, output="z", cosines=(), positions=(), relative=(), both_zero=())
    assert of_fidelity(SEEDED, other) == ""


def test_golden_tensors_are_counted_as_what_they_are(tmp_path: Path) -> None:
    golden = SHARD.model_copy(update={"reference": tmp_path / "g.safetensors"})
    assert of_fidelity(replace(SEEDED, kind="golden"), shard=golden) == ""
    assert "leaves out positions" in of_fidelity(replace(SEEDED, both_zero=()), shard=golden)


def test_positions_at_which_rounding_chooses_are_not_left_out() -> None:
    undecided = replace(SEEDED, both_zero=(), undecided=(1,))
    assert of_fidelity(undecided, CAPTURED) == ""


def test_an_output_of_one_row() -> None:
    row = replace(SEEDED, cosines=(0.9,), positions=(0,), relative=(0.1,), both_zero=())
    assert of_fidelity(row) == ""


def test_fewer_prompts_tokens_or_positions() -> None:
    assert of_behaviour(PROMPT, asked=Prompt(name="q", text="x")) == "leaves out q"
    assert (
        of_behaviour(PROMPT, asked=Prompt(name="p", text="x")) == "has 1 of 10 greedy tokens of p"
    )
    assert of_behaviour(PROMPT, asked=Prompt(name="p", ids=(1, 2, 3), greedy=1)) == (
        "has 2 of 3 positions of p"
    )


def test_a_plan_with_fewer_operations_than_its_package(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    weight, add = PlannedOperation("w", "const"), PlannedOperation("y", "add", "ANE")
    for operations, says in (
        ((weight, add), ""),
        ((weight,), "holds a plan of 0 add, and the program has 1"),
        ((add,), "holds a plan of 0 const, and the program has 1"),
    ):
        plan = replace(PLAN, functions=(PlannedFunction("main", operations),))
        assert lack("placement", plan, SHARD, package) == says


def test_embeddings() -> None:
    prompts = (Prompt(name="p", ids=(1, 2), greedy=0),)
    ids = ("L00", "pooling")
    shards = tuple(SHARD.model_copy(update={"id": id, "family": "bert"}) for id in ids)
    asked = Model(name="m", family="bert", shards=shards, prompts=prompts, sentences=tuple("abc"))
    texts = tuple(TextResult(name, 1.0, 0.0) for name in "pabc")
    ranking = Ranking("p", (0.3, 0.2, 0.1), (0.3, 0.2, 0.1), "a")

    def of(found: Embeddings | None) -> str:
        return lack("behaviour", Behaviour((), (), {}, embeddings=found), asked)

    assert of(Embeddings(texts, (ranking,), ())) == ""
    assert of(None) == "holds no embeddings"
    assert of(Embeddings(texts[:-1], (ranking,), ())) == "leaves out c"
    assert of(Embeddings(texts, (), ())) == "ranks not all sentences for p"
    longer = replace(ranking, expected=(0.3,) * 4, actual=(0.3,) * 4)
    assert of(Embeddings(texts, (longer,), ())) == "ranks not all sentences for p"
    decoder = Model(name="m", shards=(SHARD,), prompts=prompts)
    whole = replace(PROMPT, greedy=(), expected=(), leads=())
    found = Behaviour((whole,), (), {}, 9, embeddings=Embeddings(texts, (ranking,), ()))
    assert lack("behaviour", found, decoder) == "holds embeddings, of a model that gives logits"
