"""Greatest absolute difference: a NaN cannot hide in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.metrics import max_abs_error, worst_abs_error, worst_rel_error

VALUES = arrays.arrays(np.float32, 6, elements=st.floats(-1e6, 1e6, width=32))


def test_literal_differences() -> None:
    assert max_abs_error(np.array([1.0, -2.0]), np.array([1.5, 1.0])) == 3.0
    assert max_abs_error(np.array([[1.0]]), np.array([[1.0]])) == 0.0
    assert max_abs_error(np.zeros((0, 4)), np.zeros((0, 4))) == 0.0


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("side", [0, 1])
def test_one_nan_is_the_result(position: int, side: int) -> None:
    pair = [np.array([1.0, 2.0, 9.0]), np.zeros(3)]
    pair[side][position] = np.nan
    assert math.isnan(max_abs_error(*pair))


def test_infinities() -> None:
    assert max_abs_error(np.array([np.inf]), np.array([1.0])) == np.inf
    assert math.isnan(max_abs_error(np.array([np.inf]), np.array([np.inf])))


def test_the_ends_of_float32_do_not_overflow() -> None:
    a = np.array([3e38], np.float32)
    assert max_abs_error(a, -a) == pytest.approx(6e38)


def test_shapes_that_differ_are_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"cannot compare \(2,\) with \(1,\)"):
        max_abs_error(np.ones(2), np.ones(1))


@given(VALUES, VALUES, st.permutations(range(6)))
def test_it_is_the_greatest_of_all_in_any_order_and_from_either_side(
    a: np.ndarray, b: np.ndarray, order: list[int]
) -> None:
    found = max_abs_error(a, b)
    assert found == max(abs(float(x) - float(y)) for x, y in zip(a, b, strict=True))
    assert found == max_abs_error(b, a) == max_abs_error(a[order], b[order])


def test_where_the_greatest_difference_is() -> None:
    a, b = np.array([[1.0, 2.0], [3.0, -4.0]]), np.array([[1.0, 2.5], [3.0, 4.0]])
    assert worst_abs_error(a, b) == (8.0, 1, 1)
    assert worst_rel_error(a, b) == (2.0, 1, 1)
    assert worst_rel_error(a[:1], b[:1]) == (0.2, 0, 1)


def test_a_relative_difference_is_not_taken_against_what_fp16_cannot_resolve() -> None:
    a, b = np.array([[1e-6, 2.0]]), np.array([[0.0, 1.0]])
    assert worst_rel_error(a, b) == (1.0, 0, 1)
    assert worst_rel_error(a, b, floor=1e-9) == (pytest.approx(1000), 0, 0)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("of", [worst_abs_error, worst_rel_error])
def test_nan_is_the_greatest_and_named(side: int, of: object) -> None:
    pair = [np.ones((2, 3)), np.ones((2, 3))]
    pair[side][1, 2] = np.nan
    assert callable(of)
    value, *at = of(*pair)
    assert math.isnan(value)
    assert at == [1, 2]


def test_a_reference_that_is_infinite_is_no_measure() -> None:
    assert math.isnan(worst_rel_error(np.ones((1, 2)), np.array([[1.0, np.inf]])).value)
    assert worst_rel_error(np.array([[1.0, np.inf]]), np.ones((1, 2))).value == np.inf


@given(VALUES, VALUES, st.floats(1, 1e3))
def test_the_place_has_the_value(a: np.ndarray, b: np.ndarray, scale: float) -> None:
    x, y = a.reshape(2, 3).astype(np.float64), b.reshape(2, 3).astype(np.float64)
    value, row, channel = worst_abs_error(x, y)
    assert value == max_abs_error(x, y) == abs(x[row, channel] - y[row, channel])
    value, row, channel = worst_rel_error(x, y)
    size = max(abs(y[row, channel]), 2**-14)
    assert value == abs(x[row, channel] - y[row, channel]) / size
    every = np.abs(x - y) / np.maximum(np.abs(y), 2**-14)
    assert value == every.max()
    scaled = worst_rel_error(x * scale, y * scale, floor=scale * 2**-14)
    assert scaled.value == pytest.approx(value, rel=1e-12)
