"""Activations to 8-bit integers and back, as coremltools' own tests and torch have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import f32, noise, same

ONE_TO_FOUR = f32([1, 2, 3, 4]).reshape(1, 1, 2, 2)


def test_quantize() -> None:
    same("quantize", [[1, 2, 3], [1, 2, 3]], input=f32([[0, 2, 4], [0, 2, 4]]),
         zero_point=np.uint8(1), scale=np.float32(2), output_dtype="uint8")  # fmt: skip
    same("quantize", np.array([3, 5, 5, 6]).reshape(1, 1, 2, 2), input=ONE_TO_FOUR,
         zero_point=np.array([2, 4], np.int8), scale=f32([1, 2]), axis=3,
         output_dtype="int8")  # fmt: skip
    same("quantize", [0, 1, -3], input=f32([0, 2, -6]), scale=2.0, output_dtype="int8")


def test_dequantize() -> None:
    same("dequantize", [[-2, 0, 2], [-2, 0, 2]], input=np.array([[0, 1, 2]] * 2, np.uint8),
         zero_point=np.uint8(1), scale=np.float32(2))  # fmt: skip
    same("dequantize", np.array([-1, -4, 1, 0]).reshape(1, 1, 2, 2),
         input=np.array([1, 2, 3, 4], np.int8).reshape(1, 1, 2, 2), scale=f32([1, 2]),
         zero_point=np.array([2, 4], np.int8), axis=-1)  # fmt: skip
    same("dequantize", [6, -6], input=np.array([3, -3], np.int8), scale=2)


def test_small_integers_do_not_wrap() -> None:
    same("dequantize", [-255, 0], input=np.array([-128, 127], np.int8), zero_point=127, scale=1)
    same("dequantize", [-255], input=np.array([0], np.uint8), zero_point=255, scale=1)


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255)])
def test_ties_go_to_even_and_the_range_saturates(dtype: str, low: int, high: int) -> None:
    same("quantize", [0, 2, 2, 4], input=f32([0.5, 1.5, 2.5, 3.5]), scale=1, output_dtype=dtype)
    values = f32([-1e9, 1e9, -np.inf, np.inf, high + 0.4, high + 0.6])
    same("quantize", [low, high, low, high, high, high], input=values, scale=1, output_dtype=dtype)
    result = eval_op("quantize", input=f32([3]), scale=1, output_dtype=dtype)
    assert result.dtype == np.dtype(dtype)
    same("quantize", [0], input=f32([np.nan]), scale=1, output_dtype=dtype)


def test_rounding_comes_before_the_zero_point() -> None:
    """An odd zero point would turn ties the other way."""
    same("quantize", [1, 3], input=f32([0.5, 1.5]), zero_point=1, scale=1, output_dtype="int8")


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_there_and_back_as_torch(axis: int | None, dtype: str) -> None:
    x, rng = 20 * noise(3, 4, 5), np.random.default_rng(1)
    size = () if axis is None else x.shape[axis]
    scale = rng.uniform(0.05, 0.5, size).astype(np.float32)
    zero = rng.integers(0, 100, size).astype(dtype)
    limits, parameters = np.iinfo(dtype), [torch.from_numpy(np.array(a)) for a in (scale, zero)]
    parameters[1] = parameters[1].int()
    fake: Any = torch.fake_quantize_per_tensor_affine
    if axis is not None:
        fake, parameters = torch.fake_quantize_per_channel_affine, [*parameters, axis % 3]
    expected = fake(torch.from_numpy(x), *parameters, limits.min, limits.max)
    shared = {"scale": scale, "zero_point": zero, "axis": axis}
    small = eval_op("quantize", input=x, output_dtype=dtype, **shared)
    again = eval_op("dequantize", input=small, **shared)
    np.testing.assert_allclose(again, expected.numpy(), rtol=1e-6, atol=1e-6)


@given(st.integers(-128, 127), st.integers(-128, 127), st.floats(2**-10, 2**10, width=32))
def test_back_and_forth(value: int, zero: int, scale: float) -> None:
    data = np.array([value], np.int8)
    wide = eval_op("dequantize", input=data, scale=scale, zero_point=zero)
    same("quantize", data, input=wide, scale=scale, zero_point=zero, output_dtype="int8")


def test_float64_stays() -> None:
    result = eval_op("dequantize", input=np.array([3], np.int8), scale=np.array(0.1))
    assert result.dtype == np.float64
    assert result.tolist() == [0.1 * 3]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scale": f32([1, 2])}, "scale is a vector, along axis None"),
        ({"scale": f32([1, 2]), "axis": 2}, "along axis 2 of 2"),
        ({"scale": f32([1, 2]), "axis": 1}, "2 values of scale along an axis of 3"),
        ({"scale": f32([[1, 2]]), "axis": 1}, "neither scalar nor vector"),
        ({"scale": 1, "zero_point": np.zeros(3, np.int8), "axis": 0}, "3 values of zero_point"),
    ],
)
def test_what_does_not_fit(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        eval_op("quantize", input=np.zeros((2, 3), np.float32), output_dtype="int8", **parameters)
    with pytest.raises(ExecutionError, match=message):
        eval_op("dequantize", input=np.zeros((2, 3), np.int8), **parameters)


def test_an_unknown_type() -> None:
    with pytest.raises(ExecutionError, match="'int4', neither"):
        eval_op("quantize", input=f32([1]), scale=1, output_dtype="int4")
