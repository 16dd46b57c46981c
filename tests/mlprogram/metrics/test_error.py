"""Errors by size: literal values, invariances, and NaN that no bound lets pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.mlprogram.metrics.error import (
    finite_fraction,
    in_words,
    relative_l2,
    worst_abs_error,
)
from tests.mlprogram.metrics.test_cosine import pairs, rows

VALUES = arrays.arrays(np.float32, 6, elements=st.floats(-1e6, 1e6, width=32))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (0.12345, "0.123"),
        (0.0, "0"),
        (4.9e-8, "under 1e-06"),
        (1e-6, "1e-06"),
    ],
)
def test_what_float32_rounds_is_no_figure(value: float, text: str) -> None:
    assert in_words(value) == text


def test_infinities() -> None:
    assert worst_abs_error(rows([np.inf]), rows([1.0])) == np.inf
    assert math.isnan(worst_abs_error(rows([np.inf]), rows([np.inf])))


def test_the_ends_of_float32_do_not_overflow() -> None:
    a = np.array([[3e38]], np.float32)
    assert worst_abs_error(a, -a) == pytest.approx(6e38)


def test_shapes_that_differ_are_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"cannot compare \(1, 2\) with \(1, 1\)"):
        worst_abs_error(np.ones((1, 2)), np.ones((1, 1)))


@pytest.mark.parametrize("side", [0, 1])
def test_nan_is_the_greatest(side: int) -> None:
    pair = [np.ones((2, 3)), np.ones((2, 3))]
    pair[side][1, 2] = np.nan
    assert math.isnan(worst_abs_error(*pair))


@given(VALUES, VALUES)
def test_the_greatest_difference(a: np.ndarray, b: np.ndarray) -> None:
    x, y = a.reshape(2, 3).astype(np.float64), b.reshape(2, 3).astype(np.float64)
    assert worst_abs_error(x, y) == np.abs(x - y).max()


def test_literal_errors() -> None:
    assert relative_l2(rows([3, 4]), rows([3, 4])).tolist() == [0.0]
    assert relative_l2(rows([3, 4.5], [0, 1]), rows([3, 4], [1, 0])) == pytest.approx(
        [0.1, math.sqrt(2)]
    )


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        ([math.nan, 1], [1, 1], math.nan),
        ([1, 1], [math.nan, 1], math.nan),
        ([math.inf, 1], [1, 1], math.inf),
        ([math.inf, math.nan], [1, 1], math.nan),
        ([1, 1], [math.inf, 1], math.nan),
        ([math.inf, 1], [math.inf, 1], math.nan),
        ([0, 0], [0, 0], math.nan),
        ([1, 0], [0, 0], math.inf),
    ],
)
def test_no_bound_lets_the_undefined_pass(a: list[float], b: list[float], error: float) -> None:
    found = relative_l2(rows(a), rows(b))[0]
    assert found == pytest.approx(error, nan_ok=True)
    assert not found <= 1e300


@pytest.mark.parametrize("scale", [1e308, 1e-300, 5e-324])
def test_the_ends_of_float64(scale: float) -> None:
    row = np.array([[scale, 0.0]])
    assert relative_l2(-row, row).tolist() == [pytest.approx(2)]


def test_rows_of_other_shapes_have_no_relative_error() -> None:
    with pytest.raises(ValueError, match=r"cannot compare \(2, 3\) with \(1, 3\)"):
        relative_l2(np.ones((2, 3)), np.ones((1, 3)))
    assert relative_l2(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)


@settings(max_examples=50)
@given(pairs(), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_formula_scale_and_order(
    pair: tuple[np.ndarray, np.ndarray], scale: float, seed: int
) -> None:
    a, b = (x.astype(np.float64) for x in pair)
    found = relative_l2(*pair)
    expected = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(relative_l2(a * scale, b * scale), expected, rtol=1e-9)
    order = np.random.default_rng(seed).permutation(a.shape[1])
    np.testing.assert_allclose(relative_l2(a[:, order], b[:, order]), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ([1.0, -2.0, 0.0, 3e38], 1.0),
        ([1.0, np.nan, 1.0, 1.0], 0.75),
        ([np.inf, -np.inf], 0.0),
        ([np.nan], 0.0),
        ([], 0.0),
    ],
)
def test_literal_shares(values: list[float], share: float) -> None:
    assert finite_fraction(np.array(values, np.float32)) == share


def test_all_axes_count() -> None:
    assert finite_fraction(np.array([[1.0, np.nan], [np.inf, 1.0]])) == 0.5


@given(st.integers(1, 50), st.integers(0, 50))
def test_good_over_all(good: int, bad: int) -> None:
    values = np.array([1.0] * good + [np.nan] * bad)
    assert finite_fraction(values) == pytest.approx(good / (good + bad))
