"""Relative L2 error and its decibels: formulas, invariances, and NaN that no bound lets pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.metrics import decibels, relative_l2, snr
from tests.metrics.test_cosine import pairs, rows


def test_literal_errors() -> None:
    assert relative_l2(rows([3, 4]), rows([3, 4])).tolist() == [0.0]
    assert relative_l2(rows([3, 4.5], [0, 1]), rows([3, 4], [1, 0])) == pytest.approx(
        [0.1, math.sqrt(2)]
    )


def test_literal_ratios() -> None:
    assert snr(rows([1, 0]), rows([1, 0])).tolist() == [math.inf]
    assert snr(rows([9, 0], [2, 0]), rows([10, 0], [1, 0])) == pytest.approx([20, 0])


def test_uniform_quantization_has_six_decibels_a_bit() -> None:
    values = np.linspace(-1, 1, 100_001)[None]
    noise = [snr(np.round(values * 2**bits) / 2**bits, values)[0] for bits in (7, 8)]
    assert noise[1] - noise[0] == pytest.approx(20 * math.log10(2), abs=0.01)


@pytest.mark.parametrize(
    ("a", "b", "error", "ratio"),
    [
        ([math.nan, 1], [1, 1], math.nan, math.nan),
        ([1, 1], [math.nan, 1], math.nan, math.nan),
        ([math.inf, 1], [1, 1], math.inf, -math.inf),
        ([math.inf, math.nan], [1, 1], math.nan, math.nan),
        ([1, 1], [math.inf, 1], math.nan, math.nan),
        ([math.inf, 1], [math.inf, 1], math.nan, math.nan),
        ([0, 0], [0, 0], math.nan, math.nan),
        ([1, 0], [0, 0], math.inf, -math.inf),
    ],
)
def test_no_bound_lets_the_undefined_pass(
    a: list[float], b: list[float], error: float, ratio: float
) -> None:
    found, decibels = relative_l2(rows(a), rows(b))[0], snr(rows(a), rows(b))[0]
    assert found == pytest.approx(error, nan_ok=True)
    assert decibels == pytest.approx(ratio, nan_ok=True)
    assert not found <= 1e300
    assert not decibels >= -1e300


@pytest.mark.parametrize("scale", [1e308, 1e-300, 5e-324])
def test_the_ends_of_float64(scale: float) -> None:
    row = np.array([[scale, 0.0]])
    assert relative_l2(-row, row).tolist() == [pytest.approx(2)]


def test_shapes_that_differ_are_not_broadcast() -> None:
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
    with np.errstate(divide="ignore"):
        power = 10 * np.log10((b * b).sum(axis=1) / ((a - b) ** 2).sum(axis=1))
    np.testing.assert_allclose(snr(*pair), power, atol=1e-9)
    np.testing.assert_allclose(decibels(found), power, atol=1e-9)
