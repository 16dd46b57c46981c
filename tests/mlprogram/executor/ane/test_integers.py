"""Sums of 8-bit codes, and scales after accumulation."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.executor.ane.accumulator import Weight
from pytest_ane.mlprogram.executor.ane.integers import quantize, scaled_after, w8a8


def test_codes_round_away_from_zero_and_are_clamped() -> None:
    x = np.array([0.5, 1.5, -0.5, -2.5, 200, -200, np.inf], np.float32)
    assert quantize(x, 1.0, "int8").tolist() == [1, 2, -1, -3, 127, -128, 127]
    assert quantize(x[:2], 0.5, "uint8", zero_point=128).tolist() == [129, 131]


def test_a_scale_for_each_channel() -> None:
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
