"""What a caller passes in against what a model declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.interface import bind_inputs, present
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, Feature, MLModel
from tests.mlprogram.packages import Program

HALF = 65552
INT32 = 131104


def model(tmp_path: Path, kind: str = "FLOAT16", code: int = HALF) -> MLModel:
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


def optional(tmp_path: Path, **default: float) -> MLModel:
    """`y = |x|` with `x` an int32 or fp32 `[1, 4]` that may be left out."""
    whole = "intDefaultValue" in default
    program = Program()
    dtype = "INT32" if whole else "FLOAT32"
    program.input("x", (1, 4), dtype, kind=INT32 if whole else 65568)
    described = program.model.description.input[0].type
    described.isOptional = True
    for key, value in default.items():
        setattr(described.multiArrayType, key, value)
    program.op("abs", "y", dtype, (1, 4), x="x")
    program.output("y", INT32 if whole else 65568)
    return read_model(program.save(tmp_path))


@pytest.mark.parametrize(
    "default",
    [{"floatDefaultValue": 2.5}, {"doubleDefaultValue": 2.5}, {"intDefaultValue": 3},
     {"floatDefaultValue": 0.0}],
)  # fmt: skip
def test_an_optional_input_left_out_has_its_default(
    tmp_path: Path, default: dict[str, float]
) -> None:
    read = optional(tmp_path, **default)
    assert Session(read).predict({})["y"].tolist() == [[*default.values()] * 4]
    given = np.ones((1, 4), np.int32 if "intDefaultValue" in default else np.float32)
    assert Session(read).predict({"x": given})["y"].tolist() == [[1] * 4]


def test_an_optional_input_without_a_default_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match=r"input 'x' is missing; it takes fp32 \[1, 4\]\.$"):
        Session(optional(tmp_path)).predict({})


def test_an_input_of_int8(tmp_path: Path) -> None:
    read = model(tmp_path, "INT8", 131080)
    bound = bind_inputs(read, {"x": np.array([[1, -128]], np.int64)}, "as-typed")["x"]
    assert bound.dtype == np.int8
    assert bound.tolist() == [[1, -128]]
    with pytest.raises(ExecutionError, match=r"has dtype int64; it takes int8 \[1, 2\.\.8\]\.$"):
        bind_inputs(read, {"x": np.array([[1, 128]], np.int64)}, "as-typed")


def picture(tmp_path: Path, dtype: str = "FLOAT32") -> MLModel:
    """`y = x` of a BGR image of 1 x 2 pixels."""
    program = Program()
    program.input("x", (1, 3, 1, 2), dtype)
    described = program.model.description.input[0].type.imageType
    described.width, described.height, described.colorSpace = 2, 1, 30
    program.op("identity", "y", dtype, (1, 3, 1, 2), x="x")
    program.output("y")
    return read_model(program.save(tmp_path))


@pytest.mark.parametrize(("dtype", "carried"), [("FLOAT32", np.float32), ("UINT8", np.uint8)])
def test_an_image_is_bound_as_the_program_takes_it(
    tmp_path: Path, dtype: str, carried: Any
) -> None:
    pixels = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
    bound = bind_inputs(picture(tmp_path, dtype), {"x": pixels}, "as-typed")["x"]
    assert bound.dtype == carried
    assert bound.tolist() == [[[[3, 6]], [[2, 5]], [[1, 4]]]]


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.zeros((2, 1, 3), np.uint8), "shape [2, 1, 3]"), (np.zeros((1, 2, 3)), "dtype float64")],
)
def test_an_image_that_does_not_fit(tmp_path: Path, value: Any, what: str) -> None:
    read = picture(tmp_path)
    with pytest.raises(ExecutionError) as caught:
        bind_inputs(read, {"x": value}, "as-typed")
    assert str(caught.value) == (
        f"{read.path}: input 'x' has {what}; it takes a PIL image of mode RGB or uint8 [1, 2, 3]."
    )


def test_colours_that_are_not_declared(tmp_path: Path) -> None:
    """A compiled model's table may leave them out: no order of channels is made up."""
    read = picture(tmp_path)
    read = replace(read, inputs=(replace(read.inputs[0], color=""),))
    with pytest.raises(ExecutionError, match="input 'x' is an image of the colours 'unknown'; RGB"):
        bind_inputs(read, {"x": np.zeros((1, 2, 3), np.uint8)}, "as-typed")
