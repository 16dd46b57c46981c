"""Cosines, contributions and errors of two tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.mlprogram.metrics.tensors import (
    contributions,
    contributions_off_input,
    cosine,
    finite_fraction,
    in_words,
    is_cosine,
    relative_l2,
    worst_abs_error,
    zeros,
)

VALUES = st.floats(-1000, 1000, width=32)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 0], [1, 0], 1.0),
        ([1, 0], [0, 1], 0.0),
        ([1, 2], [-1, -2], -1.0),
        ([1, 0], [1, 1], 0.5**0.5),
        ([3, 4], [4, 3], 0.96),
        # Zeros and infinities have no angle.
        ([0, 0], [0, 0], math.nan),
        ([0, 0], [1, 2], math.nan),
        ([1, 2], [0, 0], math.nan),
        ([0, -0.0], [1, 0], math.nan),
        ([math.inf, math.inf], [math.inf, math.inf], math.nan),
    ],
)
def test_two_rows(a: list[float], b: list[float], expected: float) -> None:
    found = cosine(rows(a), rows(b)).tolist()
    assert found == [pytest.approx(expected, abs=1e-15, nan_ok=True)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_that_is_not_finite_undefines_its_row_alone(bad: float, side: int) -> None:
    pair = [rows([1, 2, 3], [4, 5, 6]), rows([1, 2, 3], [4, 5, 6])]
    pair[side][0, 1] = bad
    found = cosine(*pair)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(1)
    assert not found[0] >= -1


def test_no_channels_and_no_rows() -> None:
    assert np.isnan(cosine(np.zeros((2, 0)), np.zeros((2, 0)))).tolist() == [True, True]
    for of in (cosine, relative_l2):
        assert of(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)


@pytest.mark.parametrize("scale", [1e308, 3e38, 1e-45, 1e-300, 5e-324])
def test_the_ends_of_float64_neither_overflow_nor_vanish(scale: float) -> None:
    row = np.array([[scale, scale, 0.0]])
    assert cosine(row, rows([1, 1, 0])).tolist() == [pytest.approx(1)]
    assert relative_l2(-row, row).tolist() == [pytest.approx(2)]


def test_shapes_that_differ_are_not_broadcast() -> None:
    for of in (cosine, relative_l2, worst_abs_error):
        with pytest.raises(ValueError, match=r"cannot compare \(2, 3\) with \(1, 3\)"):
            of(np.ones((2, 3)), np.ones((1, 3)))
    for of_three in (contributions, contributions_off_input):
        with pytest.raises(ValueError, match=r"cannot compare \(3, 256\) with"):
            of_three(X, X, X[:1])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one shape with a live value in every row."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 8)))
    a, b = (draw(arrays.arrays(np.float32, shape, elements=VALUES)) for _ in range(2))
    a[:, 0] += np.where(a[:, 0] >= 0, 1, -1)
    b[:, -1] += np.where(b[:, -1] >= 0, 1, -1)
    return a, b


@given(pairs())
def test_it_is_the_formula_in_float64(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = (x.astype(np.float64) for x in pair)
    dot = np.array([np.dot(x, y) for x, y in zip(a, b, strict=True)])
    expected = dot / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    found = cosine(*pair)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (np.abs(found) <= 1).all()


def test_what_may_be_a_cosine() -> None:
    assert all(map(is_cosine, (-1.0, 0.0, 1.0000001, float("nan"))))
    assert not any(map(is_cosine, (1.001, -1.001, float("inf"), -float("inf"))))


TINY = 2.0**-24


def liveness(a: float, b: float, input_max: float = 1.0) -> str:
    """What one row `[0, a]` and one row `[-b, 0]` are together."""
    found = zeros(np.array([[0.0, a]]), np.array([[-b, 0.0]]), input_max)
    (name,) = [name for name in ("both", "one", "live") if getattr(found, name)[0]]
    return name


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, 0, "both"),
        (TINY, 0, "both"),
        (0, 1e-9, "both"),  # An expert's weight that is zero in fp16.
        (TINY, 1.9 * TINY, "both"),
        (2.1 * TINY, 0, "one"),
        (0, 1e-3, "one"),
        (1.1 * TINY, 1.1 * TINY, "live"),
        (1, 1, "live"),
        (math.nan, 0, "one"),
        (math.nan, math.nan, "live"),
        (0, math.inf, "one"),
    ],
)
def test_literal_rows(a: float, b: float, expected: str) -> None:
    assert liveness(a, b) == expected


@pytest.mark.parametrize(
    ("input_max", "expected"),
    [(0.0, "one"), (1.0, "one"), (100.0, "both"), (math.nan, "one"), (math.inf, "one")],
)
def test_what_is_small_for_the_input(input_max: float, expected: str) -> None:
    """fp16 has nothing above 65,504, so nothing larger enters."""
    assert liveness(50 * TINY, 0, input_max) == expected
    assert liveness(0.01, 0, 1e30) == "one"


RNG = np.random.default_rng(6)
X = RNG.standard_normal((3, 256)).astype(np.float32)
F = RNG.standard_normal((3, 256)).astype(np.float32)
WRONG = RNG.standard_normal((3, 256)).astype(np.float32)


@pytest.mark.parametrize("times", [5.0, 20.0])
def test_the_residual_hides_what_the_contribution_shows(times: float) -> None:
    """A contribution of cosine about 0.95 beside a residual 5 and 20 times as large."""
    expected, actual = times * X + F, times * X + F + 0.33 * WRONG
    found = contributions(actual, expected, times * X)
    assert found.cosines == pytest.approx(cosine(F + 0.33 * WRONG, F), abs=1e-4)
    assert found.cosines.max() < 0.96
    assert cosine(actual, expected).min() > (0.997 if times == 5 else 0.9998)
    assert found.ratios == pytest.approx(
        times * np.linalg.norm(X, axis=1) / np.linalg.norm(F, axis=1), rel=1e-5
    )
    assert not found.idle.any()


@pytest.mark.parametrize("scale", [1.0, 0.8, -3.0])
def test_of_an_unknown_residual_the_component_along_the_input_is_taken_out(scale: float) -> None:
    """Whatever the path multiplies the input by; what f adds along it goes with it."""
    expected, actual = 20 * scale * X + F, 20 * scale * X + F + 0.33 * WRONG
    found = contributions_off_input(actual, expected, X)
    assert found.cosines == pytest.approx(cosine(F + 0.33 * WRONG, F), abs=0.02)
    assert found.cosines.max() < 0.97


def test_a_shard_that_only_adds_the_residual_agrees_with_one_that_does() -> None:
    rounded = (20 * X).astype(np.float16).astype(np.float32)
    found = contributions(rounded, 20 * X, 20 * X)
    assert found.idle.all()
    assert contributions_off_input(2 * X, 3 * X, X).idle.all()


def test_who_adds_nothing_where_the_reference_does_is_not_idle() -> None:
    for pair in ((X, X + F), (X + F, X)):
        found = contributions(*pair, X)
        assert not found.idle.any()
        assert np.isnan(found.cosines).all()
        assert found.single.all()


@pytest.mark.parametrize("times", [1.0, 20.0, 100.0])
def test_who_returns_the_input_in_fp16_adds_nothing(times: float) -> None:
    """The rounding of the input is no contribution, whatever its angle to the reference's."""
    rounded = (times * X).astype(np.float16).astype(np.float32)
    for pair in ((rounded, times * X + F), (times * X + F, rounded)):
        found = contributions(*pair, times * X)
        assert found.single.all()
        assert np.isnan(found.cosines).all()
    assert not contributions(rounded, times * X + F * times / 400, times * X).single.any()
    assert not contributions_off_input(rounded, times * X + F, X).single.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1, 2])
@pytest.mark.parametrize("of", [contributions, contributions_off_input])
def test_what_is_not_finite_is_undefined_and_never_idle(bad: float, side: int, of: object) -> None:
    given = [X + F, X + F, X.copy()]
    given[side] = given[side].copy()
    given[side][1, 2] = bad
    assert callable(of)
    found = of(*given)
    assert np.isnan(found.cosines).tolist() == [False, True, False]
    assert not found.idle.any()


def test_an_input_of_zeros_takes_nothing_out() -> None:
    found = contributions_off_input(F, F, np.zeros_like(F))
    assert found.cosines == pytest.approx([1, 1, 1])
    assert found.ratios.tolist() == [0, 0, 0]


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 100), st.integers(1, 64))
def test_positive_scales_and_the_order_of_channels_do_not_change_it(
    seed: int, scale: float, channels: int
) -> None:
    rng = np.random.default_rng(seed)
    x, f, g = (rng.standard_normal((2, channels + 2)) for _ in range(3))
    order = rng.permutation(channels + 2)
    for of in (contributions, contributions_off_input):
        found = of(x + f, x + g, x)
        scaled = of(scale * (x + f), scale * (x + g), scale * x)
        permuted = of((x + f)[:, order], (x + g)[:, order], x[:, order])
        for other in (scaled, permuted):
            np.testing.assert_allclose(other.cosines, found.cosines, atol=1e-9)
            np.testing.assert_allclose(other.ratios, found.ratios, rtol=1e-9)
    np.testing.assert_allclose(contributions(x + f, x + g, x).cosines, cosine(f, g), atol=1e-9)


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


def test_infinities_and_nan_which_is_the_greatest() -> None:
    assert worst_abs_error(rows([np.inf]), rows([1.0])) == np.inf
    for a, b in ((np.inf, np.inf), (np.nan, 1), (1, np.nan)):
        assert math.isnan(worst_abs_error(rows([1, 9, a]), rows([1, 1, b])))
    a = np.array([[3e38]], np.float32)
    assert worst_abs_error(a, -a) == pytest.approx(6e38)


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
        ([[1.0, np.nan], [np.inf, 1.0]], 0.5),
    ],
)
def test_literal_shares(values: object, share: float) -> None:
    assert finite_fraction(np.array(values, np.float32)) == share
