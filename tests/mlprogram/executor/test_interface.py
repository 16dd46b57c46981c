"""Inputs checked against what a model declares; images to and from tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.interface import bind_inputs, present, to_pixels, to_tensor
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
    for dtype in (np.float16, np.float32, np.float64):
        bound = bind_inputs(read, {"x": x.astype(dtype)}, "as-typed")["x"]
        assert (bound.dtype, bound.tolist()) == (np.float32, [[2048, 2048]])
    assert bind_inputs(read, {"x": x}, "float32")["x"].tolist() == [[2049, 2049]]


def test_names(tmp_path: Path) -> None:
    assert complaint(tmp_path / "z", z=np.ones(1)) == "no input 'z'; inputs are: x."
    assert complaint(tmp_path) == "input 'x' is missing; it takes fp16 [1, 2..8]."


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 4), (4,), (1, 4, 1), (1, 0)])
def test_shapes_out_of_the_declared_range(tmp_path: Path, shape: tuple[int, ...]) -> None:
    text = complaint(tmp_path, x=np.zeros(shape, np.float32))
    assert text == f"input 'x' has shape {list(shape)}; it takes fp16 [1, 2..8]."


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64, object])
def test_another_dtype(tmp_path: Path, dtype: Any) -> None:
    text = complaint(tmp_path, x=np.zeros((1, 4), dtype))
    assert text == f"input 'x' has dtype {np.dtype(dtype)}; it takes fp16 [1, 2..8]."


@pytest.mark.parametrize(
    ("dtype", "code", "fits", "beyond"),
    [("INT32", INT32, [[1, 2]], 2**40), ("INT8", 131080, [[1, -128]], 128)],
)
def test_integers_that_keep_their_value(
    tmp_path: Path, dtype: str, code: int, fits: Any, beyond: int
) -> None:
    read = model(tmp_path, dtype, code)
    bound = bind_inputs(read, {"x": np.array(fits, np.int64)}, "as-typed")["x"]
    assert (bound.dtype, bound.tolist()) == (np.dtype(dtype.lower()), fits)
    for wrong in (np.array([[1, beyond]], np.int64), np.ones((1, 2), np.float32)):
        text = rf"has dtype {wrong.dtype}; it takes {dtype.lower()} \[1, 2\.\.8\]\.$"
        with pytest.raises(ExecutionError, match=text):
            bind_inputs(read, {"x": wrong}, "as-typed")


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


def test_colours_that_are_not_declared(tmp_path: Path) -> None:
    """A compiled model's table may leave them out: no order of channels is made up."""
    read = picture(tmp_path)
    read = replace(read, inputs=(replace(read.inputs[0], color=""),))
    with pytest.raises(ExecutionError, match="of the colours 'unknown'; known are RGB"):
        bind_inputs(read, {"x": np.zeros((1, 2, 3), np.uint8)}, "as-typed")


def image(color: str, shape: tuple[int, ...] = (2, 3), **options: Any) -> Feature:
    dtype = DType.FP16 if color == "GRAYSCALE_FLOAT16" else DType.UINT8
    return Feature("x", dtype, shape, kind="image", color=color, **options)


RED = np.zeros((2, 3, 3), np.uint8)
RED[..., 0] = 200


@pytest.mark.parametrize(("color", "channel"), [("RGB", 0), ("BGR", 2)])
def test_the_order_of_channels(color: str, channel: int) -> None:
    tensor = to_tensor(image(color), RED)
    assert tensor.shape == (1, 3, 2, 3)
    assert tensor.dtype == np.float32
    assert np.flatnonzero(tensor.sum((0, 2, 3))).tolist() == [channel]
    assert tensor.max() == 200
    np.testing.assert_array_equal(to_pixels(image(color), tensor), RED)


@pytest.mark.parametrize(
    ("color", "mode"),
    [("RGB", "RGB"), ("BGR", "RGB"), ("RGB", "RGBA"), ("GRAYSCALE", "L"),
     ("GRAYSCALE_FLOAT16", "F")],
)  # fmt: skip
def test_pil_images_are_their_pixels(color: str, mode: str) -> None:
    picture = Image.fromarray(RED).convert(mode)
    pixels = np.asarray(picture)
    expected = to_tensor(image(color), pixels[..., :3] if mode == "RGBA" else pixels)
    np.testing.assert_array_equal(to_tensor(image(color), picture), expected)


def test_grey_numbers_are_those_of_fp16() -> None:
    feature = image("GRAYSCALE_FLOAT16", (1, 3))
    x = np.array([[0.1, 2049.0, -1e6]], np.float32)
    expected = [[float(np.float16(0.1)), 2048.0, -np.inf]]
    assert to_tensor(feature, x)[0, 0].tolist() == expected
    assert to_pixels(feature, x[None, None]).tolist() == expected


@pytest.mark.parametrize(
    ("color", "value", "complaint"),
    [
        ("RGB", RED[..., 0], "shape [2, 3]"),
        ("RGB", np.zeros((2, 3, 4), np.uint8), "shape [2, 3, 4]"),
        ("RGB", np.zeros((3, 2, 3), np.uint8), "shape [3, 2, 3]"),
        ("RGB", RED.astype(np.float32), "dtype float32"),
        ("RGB", RED.astype(np.int64), "dtype int64"),
        ("RGB", "x.png", "dtype <U5"),
        ("RGB", Image.new("L", (3, 2)), "PIL mode L"),
        ("GRAYSCALE", Image.new("RGB", (3, 2)), "PIL mode RGB"),
        ("GRAYSCALE", Image.new("L", (2, 3)), "shape [3, 2]"),
        ("GRAYSCALE", RED, "shape [2, 3, 3]"),
        ("GRAYSCALE_FLOAT16", Image.new("L", (3, 2)), "PIL mode L"),
        ("GRAYSCALE_FLOAT16", RED[..., 0], "dtype uint8"),
    ],
)
def test_what_does_not_fit(color: str, value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^(shape|dtype|PIL mode)") as caught:
        to_tensor(image(color), value)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("options", "allowed", "refused", "text"),
    [
        ({}, [(2, 3)], [(3, 2), (2, 4)], "uint8 [2, 3, 3]"),
        ({"ranges": ((2, 4), (3, None))}, [(2, 3), (4, 99)], [(1, 3), (5, 3), (2, 2)],
         "uint8 [2..4, 3.., 3]"),
        ({"enumerated": ((2, 3), (4, 6))}, [(2, 3), (4, 6)], [(2, 6), (4, 3)],
         "uint8 of shape [2, 3, 3] or [4, 6, 3]"),
    ],
)  # fmt: skip
def test_sizes(options: Any, allowed: Any, refused: Any, text: str) -> None:
    feature = image("RGB", **options)
    assert present(feature) == f"a PIL image of mode RGB or {text}"
    for size in allowed:
        assert to_tensor(feature, np.zeros((*size, 3), np.uint8)).shape == (1, 3, *size)
    for size in refused:
        with pytest.raises(ValueError, match="shape"):
            to_tensor(feature, np.zeros((*size, 3), np.uint8))


def test_results_are_clipped_and_rounded() -> None:
    x = np.array([-1, 0.4, 0.6, 254.6, 256, 1e9, np.inf, -np.inf, np.nan], np.float32)
    pixels = to_pixels(image("GRAYSCALE"), x.reshape(1, 1, 1, -1))
    assert pixels.tolist() == [[0, 0, 1, 255, 255, 255, 255, 0, 0]]
    assert pixels.dtype == np.uint8


@given(st.sampled_from(["RGB", "BGR", "GRAYSCALE"]), st.integers(1, 5), st.integers(1, 5),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_there_and_back(color: str, height: int, width: int, seed: int) -> None:
    feature = image(color, (height, width))
    shape = (height, width) if color == "GRAYSCALE" else (height, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(to_pixels(feature, to_tensor(feature, pixels)), pixels)
