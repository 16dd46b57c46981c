"""Two programs operation by operation: differences, and operations with errors of their own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.probes.cases import Case
from pytest_ane.tools.blame.analysis import Suspect, suspect_operations
from pytest_ane.tools.diff import ProgramDiff, diff_programs, rank
from tests.gates.fidelity import blocks
from tests.mlprogram.packages import Program
from tests.models.families.llama.tiny import tiny_model


def case(*inputs: dict[str, np.ndarray]) -> Case:
    return Case("gaussian", "one", inputs, dict, {}, 1, 1.0)


def found(path: Path, *cases: Case) -> list[Suspect]:
    model = read_model(path)
    return suspect_operations(Session(model), Session(model, "float32"), cases, {})


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
    assert first.note == "overflows fp16: 90,000 in float32"
    assert all(other.own < 1e-2 for other in others)
    assert {o.name: o.output for o in others}["factor"] == 1  # 0 in place of 0.0067
    assert not any(other.note for other in others)


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
    first, *others = suspect_operations(Session(small), Session(small, "float32"), given, values)
    assert first.own < 1e-2  # Both have the weight as it is stored.
    op = next(op for op in small.main.walk() if op.name == "second_palettized")
    exact = next(o for o in plain.main.walk() if o.name == "second").attributes["val"]
    ideal = Session(small, "float32", overrides={op: load(plain, exact).astype(np.float32)})
    first, *others = suspect_operations(Session(small), ideal, given, values)
    assert (first.name, first.weights) == ("second_out", ("second",))
    assert first.own > 0.2 > max(other.own for other in others)


@pytest.mark.slow
def test_states(tmp_path: Path) -> None:
    """Calls of a stateful shard follow one another on a state of each program's own."""
    from pytest_ane.make import Cache, build_shard
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


X = {"x": np.float32([[3, 4, 0]])}


def chain(factor: float, last: str = "y") -> Program:
    """`a = |x|`, `b = a * factor`, `y = b + b`."""
    program = Program()
    program.input("x", (1, 3))
    program.const("c", factor, "FLOAT32")
    program.op("abs", "a", shape=(1, 3), x="x")
    program.op("mul", "b", shape=(1, 3), x="a", y="c")
    program.op("add", last, shape=(1, 3), x="b", y="b")
    program.output(last)
    return program


def compared(tmp_path: Path, one: Program, other: Program) -> ProgramDiff:
    a, b = (read_model(p.save(tmp_path / name)) for name, p in (("a", one), ("b", other)))
    return diff_programs(a, b, X, ("typed", "typed"))


@pytest.mark.parametrize("factor", [2, math.nan])
def test_equal_packages(factor: float, tmp_path: Path) -> None:
    found = compared(tmp_path, chain(factor), chain(factor))
    assert [(d.op, d.name) for d in found.differences] == [("abs", "a"), ("mul", "b"), ("add", "y")]
    assert all(d.relative == d.largest == 0 for d in found.differences)
    assert found.first_beyond(0) is None


def test_the_first_operation_that_differs(tmp_path: Path) -> None:
    """The result b is (3.03, 4.04, 0) against (3, 4, 0): 0.05 of 5."""
    found = compared(tmp_path, chain(1.01), chain(1))
    worst = found.first_beyond(1e-3)
    assert (worst.op, worst.name) == ("mul", "b")
    assert worst.relative == pytest.approx(0.01, rel=1e-4)
    assert worst.largest == pytest.approx(0.04, rel=1e-4)
    assert found.first_beyond(0.011) is None


@pytest.mark.parametrize(("factor", "other"), [(math.nan, 1), (math.inf, 1), (1, 0)])
def test_not_finite_on_one_side_and_what_should_be_zero_are_beyond_any_tolerance(
    tmp_path: Path, factor: float, other: float
) -> None:
    worst = compared(tmp_path, chain(factor), chain(other)).first_beyond(1e9)
    assert worst.name == "b"
    assert not math.isfinite(worst.relative)


def test_results_of_one_package_only_are_named(tmp_path: Path) -> None:
    longer = chain(1)
    longer.op("exp", "e", shape=(1, 3), x="x")
    found = compared(tmp_path, longer, chain(1))
    assert (found.only_first, found.only_second) == (("e",), ())
    assert [d.name for d in found.differences] == ["a", "b", "y"]


def test_names_that_conversion_to_fp16_adds_to_are_the_same(tmp_path: Path) -> None:
    half = Program()
    half.input("x", (1, 3))
    half.op("abs", "a_cast_fp16", shape=(1, 3), x="x")
    half.op("add", "y", shape=(1, 3), x="a_cast_fp16", y="a_cast_fp16")
    half.output("y")
    found = compared(tmp_path, half, chain(1))
    assert [d.name for d in found.differences] == ["a_cast_fp16", "y"]
    assert found.first_beyond(0) is None


def test_other_shapes_are_said(tmp_path: Path) -> None:
    other = Program()
    other.input("x", (1, 3))
    other.const("axes", [1], "INT32")
    other.const("keep", False, "BOOL")
    other.op("reduce_sum", "y", shape=(1,), x="x", axes="axes", keep_dims="keep")
    other.output("y")
    (difference,) = compared(tmp_path, chain(1), other).differences
    assert difference.note == "shapes [1, 3] and [1]"
    assert difference.beyond(1e9)


def test_packages_without_an_output_in_common(tmp_path: Path) -> None:
    """Whatever else is the same."""
    other = Program()
    other.input("x", (1, 3))
    other.op("exp", "zzz", shape=(1, 3), x="x")
    other.output("zzz")
    for name, each in (("one", other), ("two", chain(1, last="z"))):
        with pytest.raises(ExecutionError, match="have no output of the same name, so there is"):
            compared(tmp_path / name, chain(1), each)
