"""Contributions: what the residual path hides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.metrics.cosine import contributions, contributions_off_input, cosine

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


def test_a_small_contribution_in_a_small_channel_is_one() -> None:
    """The attention sink's 21,953 rounds to 16; the other channels do not."""
    residual = np.full((1, 256), 0.5, np.float32)
    residual[0, 7] = 21_953
    added = np.where(residual > 1, 0, 0.01 * F[:1])
    found = contributions(residual + added, residual + added, residual)
    assert not found.idle.any()
    assert found.cosines == pytest.approx([1])


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


def test_shapes_that_differ_are_not_broadcast() -> None:
    for of in (contributions, contributions_off_input):
        with pytest.raises(ValueError, match=r"cannot compare \(3, 256\) with"):
            of(X, X, X[:1])


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
