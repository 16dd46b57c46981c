"""Products in the accumulator, of fp16 and of 8-bit operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor.ane import products
from pytest_ane.mlprogram.executor.ane.accumulator import Weight
from pytest_ane.mlprogram.executor.ane.products import quantize, scaled_after, w8a8
from pytest_ane.mlprogram.executor.ops import conv as typed_conv
from pytest_ane.mlprogram.executor.ops import linear as typed

RNG = np.random.default_rng(0)


def codes(*shape: int) -> np.ndarray:
    """Small integers, whose sums are exact in any arithmetic."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": [2, 1]},
        {"groups": 2},
        {"pad_type": "custom", "pad": [1, 0, 0, 2]},
        {"bias": codes(6)},
        {"bias": codes(6), "groups": 2, "strides": [2, 2]},
    ],
)
def test_conv(options: dict[str, Any]) -> None:
    x = codes(2, 4, 5, 3)
    weight = codes(6, 4 // options.get("groups", 1), 1, 1)
    total = products.conv(x, weight, **options)
    assert total is not None
    np.testing.assert_array_equal(total.values, typed_conv.conv(x, weight, **options))
    assert total.products == total.values.size * weight.shape[1]


def test_shapes() -> None:
    assert products.linear(codes(0, 3), codes(4, 3)).values.shape == (0, 4)
    total = products.conv(codes(0, 2, 1, 5), codes(4, 2, 1, 1))
    assert total is not None
    assert total.values.shape == (0, 4, 1, 5)
    assert products.conv(codes(1, 2, 4, 4), codes(2, 2, 3, 3)) is None
    with pytest.raises(ValueError, match="do not fit"):
        products.matmul(codes(2, 3), codes(4, 5))
    with pytest.raises(ValueError, match="a weight"):
        products.linear(codes(2, 3), codes(4, 3), codes(3))


@pytest.mark.parametrize("bias", [None, codes(5)])
def test_linear(bias: np.ndarray | None) -> None:
    x, weight = codes(2, 3, 7), codes(5, 7)
    expected = typed.linear(x, weight, bias)
    np.testing.assert_array_equal(products.linear(x, weight, bias).values, expected)


@pytest.mark.parametrize(
    ("x", "y", "flags"),
    [
        ((3, 4), (4, 5), {}),
        ((2, 3, 4), (4, 5), {}),
        ((2, 1, 3, 4), (5, 4, 6), {}),
        ((4, 3), (5, 4), {"transpose_x": True, "transpose_y": True}),
        ((4,), (4, 5), {}),
        ((2, 3, 4), (4,), {}),
        ((4,), (4,), {}),
    ],
)
def test_matmul(x: tuple[int, ...], y: tuple[int, ...], flags: dict[str, bool]) -> None:
    a, b = codes(*x), codes(*y)
    np.testing.assert_array_equal(
        products.matmul(a, b, **flags).values, typed.matmul(a, b, **flags)
    )


def test_codes() -> None:
    x = np.array([0.5, 1.5, -0.5, -2.5, 200, -200, np.inf], np.float32)
    assert quantize(x, 1.0, "int8").tolist() == [1, 2, -1, -3, 127, -128, 127]
    assert quantize(x[:2], 0.5, "uint8", zero_point=128).tolist() == [129, 131]
    codes = quantize(np.ones((2, 2), np.float32), np.array([0.5, 0.25]), "int8", axis=0)
    assert codes.tolist() == [[2, 2], [4, 4]]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 2.0**14), (2**16, 2.0**30), (2**17, np.inf), (2**17 - 1, 2.0**31)]
)
def test_the_accumulator_has_32_bits(count: int, expected: float) -> None:
    codes = np.full((1, count), -128, np.int8)
    scale = 2.0**-9
    assert w8a8(codes, codes, scale, scale).values.item() == expected * scale**2


def test_a_late_scale_lets_sums_of_codes_overflow() -> None:
    """127 * 300 is beyond 32768, though only 0.3 once scaled."""
    codes = np.array([[127, 0], [1, 127]], np.int8)
    weight = Weight.of(codes[None].astype(np.float16))
    x, scale = np.array([[[300, 0.5]]], np.float16), np.array([[2**-17, 0.5]], np.float16)
    y = scaled_after(weight, x, scale)
    assert y.infinite == 1
    assert y.values[0, :, 0].tolist() == [np.inf, 181.75]
