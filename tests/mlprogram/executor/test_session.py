"""Sessions, and their replays with other constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError, ProgramError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor import session as module
from pytest_ane.mlprogram.executor.folding import constant
from pytest_ane.mlprogram.executor.session import Replay
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from tests.gates.fidelity import blocks
from tests.mlprogram.packages import Program, doubling

X = np.array([[1.0, 2.0, 3.0]], np.float32)


def chain() -> Program:
    """`a = |x|`, `b = a + a`, `y = b * 3`, all fp16."""
    program = Program()
    program.input("x", (1, 3), "FLOAT16", kind=65552)
    program.const("three", 3.0, "FLOAT16")
    program.op("abs", "a", "FLOAT16", (1, 3), x="x")
    program.op("add", "b", "FLOAT16", (1, 3), x="a", y="a")
    program.op("mul", "y", "FLOAT16", (1, 3), x="b", y="three")
    program.output("y", 65552)
    return program


def session(program: Program, tmp_path: Path, **options: Any) -> Session:
    return Session(read_model(program.save(tmp_path)), **options)


def test_outputs_by_name(tmp_path: Path) -> None:
    outputs = session(chain(), tmp_path).predict({"x": -X})
    assert outputs.keys() == {"y"}
    assert outputs["y"].tolist() == [[6, 12, 18]]
    assert outputs["y"].dtype == np.float32


def test_tapping_intermediates_inputs_and_constants(tmp_path: Path) -> None:
    prepared = session(chain(), tmp_path)
    taps = prepared.predict({"x": X}, outputs=["b", "x", "a", "three"])
    assert list(taps) == ["b", "x", "a", "three"]
    assert taps["b"].tolist() == [[2, 4, 6]]
    assert taps["three"] == 3
    assert prepared.predict({"x": X})["y"].tolist() == [[6, 12, 18]]
    with pytest.raises(ExecutionError, match=r"no value 'nowhere'; outputs are: y; every other"):
        prepared.predict({"x": X}, outputs=["nowhere"])


def test_each_result_is_rounded_as_its_type_says(tmp_path: Path) -> None:
    """20,000 doubled and tripled is 120,000: infinite in fp16, exact where nothing is rounded."""
    x = np.array([[20_000, np.nan, np.inf]], np.float32)
    typed = session(chain(), tmp_path / "a").predict({"x": x}, outputs="y")["y"]
    exact = session(chain(), tmp_path / "b", precision="float32").predict({"x": x})["y"]
    np.testing.assert_array_equal(typed, [[np.inf, np.nan, np.inf]])
    np.testing.assert_array_equal(exact, [[120_000, np.nan, np.inf]])


def test_operations_of_several_values_and_results(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 3))
    program.const("axis", 1, "INT32")
    program.const("sizes", [1, 2], "INT32")
    program.const("wall", [[9.0]], "FLOAT32")
    split = program.op("split", "low", shape=(1, 1), x="x", axis="axis", split_sizes="sizes")
    split.outputs.add().CopyFrom(split.outputs[0])
    split.outputs[1].name = "high"
    program.op("concat", "y", shape=(1, 4), values=["high", "wall", "low"], axis="axis")
    program.output("y")
    assert session(program, tmp_path).predict({"x": X})["y"].tolist() == [[2, 3, 9, 1]]


def test_constants_are_expanded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    program.input("x", (4,))
    program.blob("d", "INT4", (4,), bytes.fromhex("21f8"))
    program.const("s", [0.5], "FLOAT32")
    program.op("constexpr_blockwise_shift_scale", "w", shape=(4,), data="d", scale="s")
    program.op("add", "y", shape=(4,), x="x", y="w")
    program.output("y")
    prepared = session(program, tmp_path)
    monkeypatch.setattr("pytest_ane.mlprogram.blob._data", lambda *_: pytest.fail("read again"))
    y = prepared.predict({"x": np.zeros(4, np.float32)})["y"]
    assert y.tolist() == [0.5, 1, -4, -0.5]


def test_an_unknown_operation_is_refused_when_prepared(tmp_path: Path) -> None:
    program = chain()
    program.op("frobnicate", "z", "FLOAT16", (1, 3), x="x")
    with pytest.raises(ExecutionError, match="z: operation 'frobnicate' is not implemented"):
        session(program, tmp_path)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("relu", {"x": "x", "zzz": "x"}), ("add", {"x": "x"}), ("matmul", {"x": "x", "y": "x"})],
)
def test_what_cannot_be_computed_is_one_sentence(
    tmp_path: Path, op: str, inputs: dict[str, str]
) -> None:
    program = Program()
    program.input("x", (1, 3))
    program.op(op, "z", shape=(1, 3), **inputs)
    program.output("z")
    with pytest.raises(ExecutionError, match=rf": {op} 'z' fails on inputs [^\n]+\.$"):
        session(program, tmp_path).predict({"x": X})


def test_an_expansion_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    """17 rows do not fall into two groups: refused, not filled with whatever memory held."""
    program = Program()
    program.input("x", (1, 3))
    program.blob("i", "UINT4", (17, 4), bytes(34))
    program.const("lut", np.arange(32.0).reshape(2, 1, 16, 1), "FLOAT32")
    program.op("constexpr_lut_to_dense", "w", shape=(17, 4), indices="i", lut="lut")
    program.op("abs", "y", shape=(17, 4), x="w")
    program.output("y")
    with pytest.raises((ExecutionError, ProgramError), match=r"'w' [^\n]+\.$"):
        session(program, tmp_path)


@pytest.mark.parametrize(
    ("op", "without"),
    [("abs", "x"), ("constexpr_lut_to_dense", "lut"), ("while_loop", "loop_vars")],
)
def test_an_operation_without_what_it_needs(tmp_path: Path, op: str, without: str) -> None:
    program = Program()
    program.input("x", (2,))
    operation = program.op(op, "y", shape=(2,))
    operation.inputs[without].SetInParent()
    program.output("y")
    with pytest.raises(ExecutionError, match=r"'?y'?.*\.$"):
        session(program, tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"precision": "fp16"}, "precision 'fp16' is none of as-typed, float32, float64"),
        ({"arithmetic": "m1"}, "none of typed, ane"),
        ({"arithmetic": "ane", "precision": "float32"}, "excludes precision 'float32'"),
    ],
)
def test_options_that_there_are_not(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExecutionError, match=sentence):
        session(chain(), tmp_path, **options)


@pytest.mark.parametrize("inputs", [X, None, [1, 2]])
def test_inputs_without_names(tmp_path: Path, inputs: Any) -> None:
    with pytest.raises(ExecutionError, match="give them by name: x"):
        session(chain(), tmp_path).predict(inputs)


def test_results_share_nothing_with_the_session(tmp_path: Path) -> None:
    prepared, x = session(chain(), tmp_path), X.copy()
    taps = prepared.predict({"x": x}, outputs=["x", "three", "y"])
    for value in taps.values():
        value[...] = 99
    again = prepared.predict({"x": x}, outputs=["x", "three", "y"])
    assert again["x"].tolist() == X.tolist()
    assert again["three"] == 3
    assert again["three"].dtype == np.float32
    assert again["y"].tolist() == [[6, 12, 18]]


def test_a_result_of_another_shape_than_declared(tmp_path: Path) -> None:
    """Inside it may be: of `select` over a flexible axis coremltools declares one operand's."""
    program = Program()
    program.input("x", (1, 3))
    program.op("abs", "inner", shape=(1, 1), x="x")
    program.op("abs", "y", shape=(7,), x="inner")
    program.output("y")
    prepared = session(program, tmp_path)
    assert prepared.predict({"x": X}, outputs=["inner"])["inner"].shape == (1, 3)
    with pytest.raises(ExecutionError, match=r"'y' came out with shape \[1, 3\], the program decl"):
        prepared.predict({"x": X})


@pytest.fixture
def model(tmp_path: Path) -> MLModel:
    return read_model(blocks.plain(tmp_path))


def inputs() -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, 32, n, 1)).astype(np.float16)} for n in (1, 5)]


def with_other(model: MLModel, name: str) -> Session:
    """The block with one weight all ones."""
    op = next(op for op in model.main.walk() if op.name == name)
    return Session(model, overrides={op: np.ones((32, 32, 1, 1), np.float32)})


def test_a_given_weight_takes_the_place_of_the_package_s(model: MLModel) -> None:
    x = inputs()[0]
    values = with_other(model, "first").predict(x, outputs=["first_out"])["first_out"]
    total = x["x"].astype(np.float32).sum()
    np.testing.assert_allclose(values, np.full((1, 32, 1, 1), total), rtol=1e-3)


@pytest.mark.parametrize("name", blocks.NAMES)
def test_a_variant_is_bit_for_bit_a_whole_run(model: MLModel, name: str) -> None:
    other = with_other(model, name)
    replay = Replay(Session(model), inputs())
    found = replay.variant(other, [name])
    for one, whole in zip(found, other.predict_all(inputs()), strict=True):
        assert np.array_equal(one["y"], whole["y"])
    # And the first run is as it was.
    for one, whole in zip(replay.outputs(), Session(model).predict_all(inputs()), strict=True):
        assert np.array_equal(one["y"], whole["y"])


def test_only_what_follows_is_run(model: MLModel, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, ran = Replay(Session(model), inputs()), []
    run = module.run_all
    monkeypatch.setattr(
        module, "run_all", lambda plan, *rest: (ran.append(len(plan.steps)), run(plan, *rest))
    )
    for name in blocks.NAMES:
        replay.variant(with_other(model, name), [name])
    # Three convolutions, two activations and the sum; each weight leaves two operations less.
    assert ran == [6, 4, 2]


def taken(tmp_path: Path, value: Any, dtype: str) -> Any:
    program = doubling()
    program.const("c", value, dtype)
    model = read_model(program.save(tmp_path))
    operation = next(op for op in model.program.walk() if op.name == "c")
    return constant(model, operation.attributes["val"])


@pytest.mark.parametrize(
    ("value", "dtype", "kind"),
    [(2, "INT32", int), (0.5, "FLOAT16", float), (True, "BOOL", bool), ("same", "STRING", str)],
)
def test_scalars_are_python_values(tmp_path: Path, value: Any, dtype: str, kind: type) -> None:
    found = taken(tmp_path, value, dtype)
    assert type(found) is kind
    assert found == value


def test_arrays_are_carried_in_their_types(tmp_path: Path) -> None:
    found = taken(tmp_path / "1", [0.1, 65504], "FLOAT16")
    assert (found.dtype, found.tolist()) == (np.float32, [0.0999755859375, 65504])
    assert taken(tmp_path / "2", [1, 2], "INT32").dtype == np.int32
