"""add, sub, mul: exact, then rounded once."""

from __future__ import annotations

import numpy as np

from pytest_ane.mlprogram.executor.ane.elementwise import add, mul, sub


def half(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_ties_go_away_from_zero() -> None:
    assert add(half(2048, -2048), half(1, -1)).tolist() == [2050, -2050]
    assert mul(half(2049 / 2048 * 1024), half(1 + 2**-10)).tolist() == [1025.5 + 0.5]


def test_infinities_are_numbers() -> None:
    infinity = half(np.inf)
    assert sub(infinity, infinity).tolist() == [0]
    assert mul(half(0), infinity).tolist() == [0]
    assert mul(half(0.5), infinity).tolist() == [32768]
    assert add(half(np.nan), half(1)).tolist() == [np.inf]


def test_zeros_are_positive_and_subnormals_stay() -> None:
    assert not np.signbit(mul(half(-0.0, 2.0**-24), half(1, -(2.0**-2)))).any()
    assert add(half(2.0**-24), half(0)).tolist() == [2.0**-24]


def test_operands_broadcast() -> None:
    assert add(np.zeros((2, 1), np.float32), 1.0).shape == (2, 1)
