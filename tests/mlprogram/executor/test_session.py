"""Sessions, and their replays with other constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor import session as module
from pytest_ane.mlprogram.executor.prepare import constant
from pytest_ane.mlprogram.executor.session import Replay
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from tests.gates.fidelity import blocks
from tests.mlprogram.executor.programs import written
from tests.mlprogram.packages import Program, doubling

X = np.array([[1.0, 2.0, 3.0]], np.float32)


CHAIN = """
    tensor<fp16, [1, 3]> a = abs(x = x);
    tensor<fp16, [1, 3]> b = add(x = a, y = a);
    fp16 three = const()[val = fp16(3)];
    tensor<fp16, [1, 3]> y = mul(x = b, y = three);
"""


def chain(tmp_path: Path, **options: Any) -> Session:
    """`a = |x|`, `b = a + a`, `y = b * 3`, all fp16."""
    return written(tmp_path / "m.mlmodelc", CHAIN, inputs="tensor<fp16, [1, 3]> x", **options)


def row(tmp_path: Path, body: str, outputs: str = "y") -> Session:
    """A session of operations on `x [1, 3]`."""
    return written(tmp_path / "m.mlmodelc", body, outputs, "tensor<fp32, [1, 3]> x")


def test_outputs_by_name(tmp_path: Path) -> None:
    outputs = chain(tmp_path).predict({"x": -X})
    assert outputs.keys() == {"y"}
    assert outputs["y"].tolist() == [[6, 12, 18]]
    assert outputs["y"].dtype == np.float32


def test_tapping_intermediates_inputs_and_constants(tmp_path: Path) -> None:
    prepared = chain(tmp_path)
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
    typed = chain(tmp_path / "a").predict({"x": x}, outputs="y")["y"]
    exact = chain(tmp_path / "b", precision="float32").predict({"x": x})["y"]
    np.testing.assert_array_equal(typed, [[np.inf, np.nan, np.inf]])
    np.testing.assert_array_equal(exact, [[120_000, np.nan, np.inf]])


def test_constants_are_expanded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program()
    program.input("x", (4,))
    program.blob("d", "INT4", (4,), bytes.fromhex("21f8"))
    program.const("s", [0.5], "FLOAT32")
    program.op("constexpr_blockwise_shift_scale", "w", shape=(4,), data="d", scale="s")
    program.op("add", "y", shape=(4,), x="x", y="w")
    program.output("y")
    prepared = Session(read_model(program.save(tmp_path)))
    monkeypatch.setattr("pytest_ane.mlprogram.blob._data", lambda *_: pytest.fail("read again"))
    y = prepared.predict({"x": np.zeros(4, np.float32)})["y"]
    assert y.tolist() == [0.5, 1, -4, -0.5]


def test_what_follows_from_constants_is_folded(tmp_path: Path) -> None:
    body = """
        tensor<fp32, [3]> a = const()[val = tensor<fp32, [3]>([1, 2, 3])];
        tensor<fp32, [3]> b = add(x = a, y = a);
        tensor<fp32, [3]> c = mul(x = b, y = a);
        tensor<fp32, [1, 3]> y = add(x = x, y = c);
        tensor<fp32, [2]> r = random_normal(shape = tensor<int32, [1]>([2]));
        tensor<fp32, [2048, 1024]> f = fill(shape = tensor<int32, [2]>([2048, 1024]));
    """
    prepared = row(tmp_path, body)
    assert prepared.computed == ("y", "r", "f")  # What is random, and what is large, is not.
    assert prepared.predict({"x": X})["y"].tolist() == [[3, 10, 21]]
    assert prepared.predict({"x": X}, outputs=["c"])["c"].tolist() == [2, 8, 18]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("fp32 y = frobnicate(x = x);", "y: operation 'frobnicate' is not implemented"),
        ("fp32 y = add(x = tensor<fp32, [2]>([1, 2]), y = tensor<fp32, [3]>([1, 2, 3]));",
         "add 'y' cannot be computed: shape mismatch: objects cannot be broadcast"),
        # 17 rows do not fall into two groups: refused, not filled with whatever memory held.
        ("tensor<uint4, [3, 1]> i = const()[val = tensor<uint4, [3, 1]>([[1], [0], [1]])];"
         "tensor<fp32, [2, 1, 2, 1]> t = const()[val = tensor<fp32, [2, 1, 2, 1]>("
         "[[[[1], [2]]], [[[3], [4]]]])];"
         "tensor<fp32, [3, 1]> w = constexpr_lut_to_dense(indices = i, lut = t);"
         "tensor<fp32, [3, 1]> y = abs(x = w);", "'w' cannot be computed: .*do not divide"),
        *((f"fp32 y = {op}({without} = ());", r"'?y'?.*\.$") for op, without in (
            ("abs", "x"), ("constexpr_lut_to_dense", "lut"), ("while_loop", "loop_vars"))),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_one_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    with pytest.raises(ExecutionError, match=sentence):
        row(tmp_path, body)


@pytest.mark.parametrize("call", ["relu(x = x, zzz = x)", "add(x = x)", "matmul(x = x, y = x)"])
def test_what_cannot_be_computed_is_one_sentence(tmp_path: Path, call: str) -> None:
    op = call.partition("(")[0]
    with pytest.raises(ExecutionError, match=rf": {op} 'y' fails on inputs [^\n]+\.$"):
        row(tmp_path, f"tensor<fp32, [1, 3]> y = {call};").predict({"x": X})


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
        chain(tmp_path, **options)


def test_results_share_nothing_with_the_session(tmp_path: Path) -> None:
    prepared, x = chain(tmp_path), X.copy()
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
    prepared = row(tmp_path, "fp32 inner = abs(x = x); tensor<fp32, [7]> y = abs(x = inner);")
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
