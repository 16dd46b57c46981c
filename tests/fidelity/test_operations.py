"""Operations whose inputs agree and whose outputs do not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.fidelity import Case
from pytest_ane.fidelity.cases import flat_rows
from pytest_ane.fidelity.operations import Suspect, rank, suspects
from pytest_ane.mil import read_model
from pytest_ane.mil.blob import load
from pytest_ane.reference import Session
from tests.families.llama.tiny import tiny_model
from tests.fidelity import blocks
from tests.mil.packages import Program


def case(*inputs: dict[str, np.ndarray]) -> Case:
    return Case("gaussian", "one", inputs, flat_rows, {}, 1, 1.0)


def found(path: Path, *cases: Case) -> list[Suspect]:
    model = read_model(path)
    return suspects(Session(model), Session(model, "float32"), cases, {})


def squares(folder: Path) -> Path:
    """A norm that squares in fp16: `y = x / sqrt(mean(x * x))`, and an idle `|x|` beside it."""
    made = Program()
    made.input("x", (1, 4), "FLOAT16", kind=65552)
    made.const("axes", [1], "INT32")
    made.const("keep", True, "BOOL")
    made.const("epsilon", 1e-5, "FLOAT16")
    made.op("abs", "size", "FLOAT16", (1, 4), x="x")
    made.op("mul", "square", "FLOAT16", (1, 4), x="x", y="x")
    made.op("reduce_mean", "mean", "FLOAT16", (1, 1), x="square", axes="axes", keep_dims="keep")
    made.op("rsqrt", "factor", "FLOAT16", (1, 1), x="mean", epsilon="epsilon")
    made.op("mul", "y", "FLOAT16", (1, 4), x="x", y="factor")
    made.output("y", 65552)
    return made.save(folder)


def test_the_square_that_overflows_is_first(tmp_path: Path) -> None:
    """What follows from it is wrong too, but not by its own doing."""
    first, *others = found(squares(tmp_path), case({"x": np.float16([[300, 1, 2, 3]])}))
    assert (first.op, first.name, first.own, first.inputs) == ("mul", "square", math.inf, 0)
    assert first.peak == 90_000
    assert first.overflows
    assert all(other.own < 1e-2 for other in others)
    assert {o.name: o.output for o in others}["factor"] == 1  # 0 in place of 0.0067
    assert not any(other.overflows for other in others)


def test_the_worst_call_counts(tmp_path: Path) -> None:
    tame, wild = ({"x": np.float16([[n, 1, 2, 3]])} for n in (2, 300))
    for given in ([case(tame), case(wild)], [case(wild), case(tame)], [case(tame, wild)]):
        first, *_ = found(squares(tmp_path / str(len(list(tmp_path.iterdir())))), *given)
        assert (first.name, first.peak) == ("square", 90_000)


def test_agreement(tmp_path: Path) -> None:
    """Whole numbers lose nothing in fp16."""
    made = Program()
    made.input("x", (1, 4), "FLOAT16", kind=65552)
    made.op("add", "y", "FLOAT16", (1, 4), x="x", y="x")
    made.output("y", 65552)
    (only,) = found(made.save(tmp_path), case({"x": np.float16([[1, 2, 3, 4]])}))
    assert (only.own, only.inputs, only.output, only.peak) == (0, 0, 0, 8)


def test_nan_is_as_bad_as_infinity(tmp_path: Path) -> None:
    made = Program()
    made.input("x", (1, 4), "FLOAT16", kind=65552)
    made.op("mul", "square", "FLOAT16", (1, 4), x="x", y="x")
    made.op("sub", "y", "FLOAT16", (1, 4), x="square", y="square")
    made.output("y", 65552)
    first, second = found(made.save(tmp_path), case({"x": np.float16([[300, 1, 2, 3]])}))
    assert (first.name, second.name) == ("square", "y")
    assert second.own == 0  # 90,000 - 90,000, asked on what the exact program has
    assert math.isnan(second.output)
    assert rank(math.nan) == rank(math.inf) > rank(1e300)


def test_the_operation_that_takes_a_spoilt_weight(tmp_path: Path) -> None:
    small, plain = blocks.models(tmp_path, {"second": 1})
    values = {"second_palettized": "second"}
    given = blocks.cases(plain)
    first, *others = suspects(Session(small), Session(small, "float32"), given, values)
    assert first.own < 1e-2  # Both have the weight as it is stored.
    op = next(op for op in small.main.walk() if op.name == "second_palettized")
    exact = next(o for o in plain.main.walk() if o.name == "second").attributes["val"]
    ideal = Session(small, "float32", overrides={op: load(plain, exact).astype(np.float32)})
    first, *others = suspects(Session(small), ideal, given, values)
    assert (first.name, first.weights) == ("second_out", ("second",))
    assert first.own > 0.2 > max(other.own for other in others)


@pytest.mark.slow
def test_states(tmp_path: Path) -> None:
    """Calls of a stateful shard follow one another on a state of each program's own."""
    from pytest_ane.build import Cache, build_shard
    from pytest_ane.manifest import Palettize, Shard

    model = tiny_model(context=12)
    asked = Palettize(nbits=2, granularity="per_tensor", weight_threshold=0)
    shard = Shard(model="m", id="L00", max_tokens=4, compression=asked)
    artifact = build_shard(shard, Cache(tmp_path), identity={}, model=lambda: model)
    layout = model.layout("L00")
    hidden = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    calls = [layout.inputs(hidden[i : i + 2], i) for i in range(0, 6, 2)]
    listed = found(artifact.path, case(*calls))
    assert {s.op for s in listed} >= {"read_state", "conv"}
    assert all(s.own < 0.05 for s in listed)
