"""What a caller passes in against what a model declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.errors import ExecutionError
from pytest_ane.mil import read_model
from pytest_ane.mil.records import DType, Feature, Model
from pytest_ane.reference import Session
from pytest_ane.reference.interface import bind_inputs, present
from tests.mil.packages import Program

HALF = 65552
INT32 = 131104


def model(tmp_path: Path, kind: str = "FLOAT16", code: int = HALF) -> Model:
    program = Program()
    program.input("x", (1, 4), kind, ranges=((1, 1), (2, 8)), kind=code)
    program.op("abs", "y", kind, (1, None), x="x")
    program.output("y", code)
    return read_model(program.save(tmp_path))


def complaint(tmp_path: Path, **inputs: Any) -> str:
    read = model(tmp_path)
    with pytest.raises(ExecutionError) as caught:
        bind_inputs(read, inputs, "as-typed")
    return str(caught.value).removeprefix(f"{read.path}: ")


def test_fp16_inputs_are_rounded_unless_nothing_is(tmp_path: Path) -> None:
    read = model(tmp_path)
    x = np.full((1, 2), 2049.0, np.float32)
    assert bind_inputs(read, {"x": x}, "as-typed")["x"].tolist() == [[2048, 2048]]
    assert bind_inputs(read, {"x": x}, "float32")["x"].tolist() == [[2049, 2049]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_of_any_width(tmp_path: Path, dtype: Any) -> None:
    bound = bind_inputs(model(tmp_path), {"x": np.ones((1, 3), dtype)}, "as-typed")["x"]
    assert bound.dtype == np.float32


def test_an_unknown_name(tmp_path: Path) -> None:
    assert complaint(tmp_path, z=np.ones(1)) == "no input 'z'; inputs are: x."


def test_a_missing_input(tmp_path: Path) -> None:
    assert complaint(tmp_path) == "input 'x' is missing; it takes fp16 [1, 2..8]."


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 4), (4,), (1, 4, 1), (1, 0)])
def test_shapes_out_of_the_declared_range(tmp_path: Path, shape: tuple[int, ...]) -> None:
    text = complaint(tmp_path, x=np.zeros(shape, np.float32))
    assert text == f"input 'x' has shape {list(shape)}; it takes fp16 [1, 2..8]."


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64, object])
def test_another_dtype(tmp_path: Path, dtype: Any) -> None:
    text = complaint(tmp_path, x=np.zeros((1, 4), dtype))
    assert text == f"input 'x' has dtype {np.dtype(dtype)}; it takes fp16 [1, 2..8]."


def test_integers_that_keep_their_value(tmp_path: Path) -> None:
    read = model(tmp_path, "INT32", INT32)
    bound = bind_inputs(read, {"x": np.array([[1, 2]], np.int64)}, "as-typed")["x"]
    assert bound.dtype == np.int32
    with pytest.raises(ExecutionError, match="has dtype int64"):
        bind_inputs(read, {"x": np.array([[1, 2**40]], np.int64)}, "as-typed")
    with pytest.raises(ExecutionError, match="has dtype float32"):
        bind_inputs(read, {"x": np.ones((1, 2), np.float32)}, "as-typed")


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (Feature("x", DType.FP16, (1, 4)), "fp16 [1, 4]"),
        (Feature("x", DType.INT32, (1,), ((1, None),)), "int32 [1..]"),
        (Feature("x", DType.FP32, (1, 4), enumerated=((1, 4), (1, 8))),
         "fp32 of shape [1, 4] or [1, 8]"),
    ],
)  # fmt: skip
def test_what_a_feature_takes(feature: Feature, text: str) -> None:
    assert present(feature) == text


def test_enumerated_shapes(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 4), ranges=((1, 1), (4, 8)))
    array = program.model.description.input[0].type.multiArrayType
    array.ClearField("shapeRange")
    for shape in ((1, 4), (1, 8)):
        array.enumeratedShapes.shapes.add().shape.extend(shape)
    program.op("abs", "y", shape=(1, None), x="x")
    program.output("y")
    session = Session(read_model(program.save(tmp_path)))
    assert session.predict({"x": np.ones((1, 8), np.float32)})["y"].shape == (1, 8)
    with pytest.raises(ExecutionError, match=r"it takes fp32 of shape \[1, 4\] or \[1, 8\]\.$"):
        session.predict({"x": np.ones((1, 5), np.float32)})


def test_an_optional_input_left_out_is_said_to_be_missing(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1, 4))
    program.model.description.input[0].type.isOptional = True
    program.op("abs", "y", shape=(1, 4), x="x")
    program.output("y")
    session = Session(read_model(program.save(tmp_path)))
    with pytest.raises(ExecutionError, match="input 'x'"):
        session.predict({})
