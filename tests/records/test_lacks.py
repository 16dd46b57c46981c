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
from pytest_ane.gates.placement.plans import Message, PlannedFunction, PlannedOperation, Tally
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


def of_fidelity(
    *found: Comparison, compared: bool = True, shard: Shard = SHARD, **more: Any
) -> str:
    more = {"same_module": False if compared else None} | more
    measured = Fidelity(found, compared, {}, BUDGET, interface=(), coverage=(), **more)
    return lack("fidelity", measured, shard)


NAMELESS = PlannedFunction("main", (PlannedOperation("", "conv", "ANE"),))
LOG = "holds counts or a log, not Core ML's plan alone"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"source": "counts"}, LOG),
        ({"tallies": (Tally(None, 9, 9),)}, LOG),
        ({"messages": (Message("a", "b", False, 1),)}, LOG),
        ({"functions": (NAMELESS,)}, "holds a plan that names no operation"),
        ({"functions": ()}, "holds a plan that names no operation"),
        ({"compute_units": "ALL"}, "holds a plan for ALL, and was recorded with CPU_AND_NE"),
        (
            {"compute_units": ""},
            "holds a plan for unknown compute units, and was recorded with CPU_AND_NE",
        ),
    ],
)
def test_a_plan(changes: dict[str, Any], says: str) -> None:
    assert lack("placement", replace(PLAN, **changes), SHARD) == says


def test_fidelity_without_a_reference() -> None:
    assert of_fidelity(SEEDED, CAPTURED) == ""
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
    held = Fidelity(measured, True, {}, BUDGET, interface=(), coverage=states, same_module=False)
    assert lack("fidelity", held, shard) == "has no probe of 8 keys"


def test_fidelity_without_an_error_budget() -> None:
    unsplit = Fidelity((SEEDED, CAPTURED), True, {}, interface=(), coverage=(), same_module=False)
    assert lack("fidelity", unsplit, SHARD) == "has no error budget"
    own = SHARD.model_copy(update={"artifact": Path("x.mlpackage")})
    assert lack("fidelity", unsplit, own) == ""


def test_fidelity_that_does_not_say_whose_its_reference_is() -> None:
    says = "does not say whether its reference is the same module"
    assert of_fidelity(SEEDED, CAPTURED, same_module=None) == says
    assert of_fidelity(SEEDED, CAPTURED, same_module=True) == ""
    held = SHARD.model_copy(update={"reference": Path("x-fp16.mlpackage")})
    assert of_fidelity(SEEDED, CAPTURED, shard=held, same_module=None) == ""


def test_fewer_probes() -> None:
    assert of_fidelity(CAPTURED) == "has 0 gaussian probes, and at least 1 were asked"
    two = SHARD.model_copy(update={"probes": Probes(kinds=("gaussian",), count=2)})
    assert of_fidelity(SEEDED, shard=two).startswith("has 1 gaussian probes, and at least 2 ")
    assert of_fidelity(SEEDED, replace(SEEDED, probe="h"), shard=two) == ""
    massive = SHARD.model_copy(update={"probes": Probes(kinds=("massive",))})
    says = "has 0 massive probes, and at least 3 were asked"
    assert of_fidelity(SEEDED, shard=massive) == says
    assert of_fidelity(SEEDED, shard=massive.model_copy(update={"family": "llama"})) == says


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cosines": (0.9,), "positions": (0,)}, "leaves out positions of g"),
        ({"cosines": (0.9,), "positions": (2,)}, "leaves out positions of g"),
        ({"cosines": (), "positions": ()}, "leaves out positions of g"),
        ({"cosines": (0.9, 0.9), "positions": (2, 4)}, "leaves out positions of g"),
        # One row, and positions at which rounding chooses.
        ({"cosines": (0.9,), "positions": (0,), "both_zero": ()}, ""),
        ({"both_zero": (), "undecided": (1,)}, ""),
    ],
)
def test_fewer_positions(changes: dict[str, Any], says: str) -> None:
    relative = changes.get("cosines", SEEDED.relative)
    assert of_fidelity(replace(SEEDED, **changes, relative=relative)) == says
    # An output that the reference does not have stands beside one that it has.
    other = replace(SEEDED, output="z", cosines=(), positions=(), relative=(), both_zero=())
    assert of_fidelity(SEEDED, other) == ""


def test_golden_tensors_are_counted_as_what_they_are(tmp_path: Path) -> None:
    golden = SHARD.model_copy(update={"reference": tmp_path / "g.safetensors"})
    assert of_fidelity(replace(SEEDED, kind="golden"), shard=golden) == ""
    assert "leaves out positions" in of_fidelity(replace(SEEDED, both_zero=()), shard=golden)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Prompt(name="p", ids=(1, 2), greedy=1), ""),
        (Prompt(name="q", text="x"), "leaves out q"),
        (Prompt(name="p", text="x"), "has 1 of 10 greedy tokens of p"),
        (Prompt(name="p", ids=(1, 2, 3), greedy=1), "has 2 of 3 positions of p"),
    ],
)
def test_fewer_prompts_tokens_or_positions(asked: Prompt, says: str) -> None:
    model = Model(name="m", shards=(SHARD,), prompts=(asked,))
    assert lack("behaviour", Behaviour((PROMPT,), (), {}, 9), model) == says


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
