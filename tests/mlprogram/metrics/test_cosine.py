"""Cosine: literal angles, undefined angles, what must not change it, and rows of zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.mlprogram.metrics.cosine import cosine, is_cosine, zeros

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
    ],
)
def test_two_rows(a: list[float], b: list[float], expected: float) -> None:
    assert cosine(rows(a), rows(b)).tolist() == [pytest.approx(expected, abs=1e-15)]


def test_each_row_is_compared_with_its_own() -> None:
    found = cosine(rows([1, 0], [0, 1], [1, 1]), rows([2, 0], [1, 0], [-1, -1]))
    np.testing.assert_allclose(found, [1, 0, -1], atol=1e-15)
    assert found.dtype == np.float64


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_that_is_not_finite_undefines_its_row_alone(bad: float, side: int) -> None:
    pair = [rows([1, 2, 3], [4, 5, 6]), rows([1, 2, 3], [4, 5, 6])]
    pair[side][0, 1] = bad
    found = cosine(*pair)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(1)
    assert not found[0] >= -1


def test_nothing_but_values_that_are_not_finite() -> None:
    assert np.isnan(cosine(rows([np.inf, np.inf]), rows([np.inf, np.inf]))).all()


@pytest.mark.parametrize(
    ("a", "b"), [([0, 0], [0, 0]), ([0, 0], [1, 2]), ([1, 2], [0, 0]), ([0, -0.0], [1, 0])]
)
def test_a_row_of_zeros_has_no_angle(a: list[float], b: list[float]) -> None:
    assert np.isnan(cosine(rows(a), rows(b))).all()


def test_no_channels_and_no_rows() -> None:
    assert np.isnan(cosine(np.zeros((2, 0)), np.zeros((2, 0)))).tolist() == [True, True]
    assert cosine(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)


@pytest.mark.parametrize("scale", [1e308, 3e38, 1e-45, 1e-300, 5e-324])
def test_the_ends_of_float64_neither_overflow_nor_vanish(scale: float) -> None:
    row = np.array([[scale, scale, 0.0]])
    assert cosine(row, rows([1, 1, 0])).tolist() == [pytest.approx(1)]


def test_shapes_that_differ_are_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"cannot compare \(2, 3\) with \(1, 3\)"):
        cosine(np.ones((2, 3)), np.ones((1, 3)))


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


@given(pairs(), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_positive_scales_do_not_change_it(
    pair: tuple[np.ndarray, np.ndarray], s: float, t: float
) -> None:
    a, b = pair[0].astype(np.float64), pair[1].astype(np.float64)
    np.testing.assert_allclose(cosine(a * s, b * t), cosine(a, b), atol=1e-12)
    np.testing.assert_allclose(cosine(a * -s, b), -cosine(a, b), atol=1e-12)


@given(pairs(), st.randoms(use_true_random=False))
def test_the_order_of_channels_does_not_change_it_and_neither_does_that_of_sides(
    pair: tuple[np.ndarray, np.ndarray], random: object
) -> None:
    a, b = pair
    order = np.random.default_rng(random.getrandbits(32)).permutation(a.shape[1])
    np.testing.assert_allclose(cosine(a[:, order], b[:, order]), cosine(a, b), atol=1e-12)
    np.testing.assert_allclose(cosine(b, a), cosine(a, b), atol=1e-12)


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
    assert liveness(50 * TINY, 0, input_max) == expected


def test_no_input_is_so_large_that_everything_is_zero() -> None:
    """fp16 has nothing above 65,504, so nothing larger enters."""
    assert liveness(0.01, 0, 1e30) == "one"


@given(st.floats(0, 1e-6), st.floats(0, 1e-6), st.floats(0, 1e5))
def test_every_row_has_one_state_whichever_side_is_first(a: float, b: float, most: float) -> None:
    assert liveness(a, b, most) == liveness(b, a, most)
    assert liveness(a, a, most) != "one"
