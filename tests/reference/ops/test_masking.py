"""The band of a matrix, and the places of what is not zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, f32, noise, same

X = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def test_band_part() -> None:
    same("band_part", [[1, 2, 3], [0, 5, 6], [0, 0, 9]], x=X, lower=0, upper=-1)
    same("band_part", [[1, 0, 0], [4, 5, 0], [7, 8, 9]], x=X, lower=-1, upper=0)
    same("band_part", [[1, 0, 0], [0, 5, 0], [0, 0, 9]], x=X, lower=0, upper=0)
    same("band_part", [[1, 2, 0], [4, 5, 6], [7, 8, 9]], x=X, lower=2, upper=1)
    same("band_part", X, x=X)


@settings(max_examples=40)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(-1, 4), st.integers(-1, 4))
def test_bands_of_several_matrices(m: int, n: int, lower: int, upper: int) -> None:
    x = noise(2, 1, m, n)
    expected = np.zeros_like(x)
    for i in range(m):
        for j in range(n):
            if (lower < 0 or i - j <= lower) and (upper < 0 or j - i <= upper):
                expected[..., i, j] = x[..., i, j]
    same("band_part", expected, x=x, lower=lower, upper=upper)


def test_infinity_outside_the_band_is_zero() -> None:
    x = np.full((2, 2), -np.inf, np.float32)
    same("band_part", [[0, -np.inf], [0, 0]], x=np.triu(x, 1) + np.triu(x, 1), lower=0)
    same("band_part", [[-np.inf, 0], [0, -np.inf]], x=x, lower=0, upper=0)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float64])
def test_types_stay(dtype: Any) -> None:
    assert eval_op("band_part", x=X.astype(dtype)).dtype == dtype


def test_a_vector_has_no_band() -> None:
    with pytest.raises(Exception, match="not a matrix"):
        eval_op("band_part", x=f32([1, 2]))


def test_non_zero() -> None:
    same("non_zero", [[0, 1], [1, 0]], x=f32([[0, 3], [-1, 0]]))
    same("non_zero", [[0], [2]], x=np.array([True, False, True]))
    same("non_zero", [[0], [1]], x=f32([np.nan, np.inf, -0.0]))
    same("non_zero", np.empty((0, 2)), x=np.zeros((2, 3)))
    same("non_zero", np.empty((0, 2)), x=np.zeros((0, 3)))
    assert eval_op("non_zero", x=X).dtype == np.int32


@given(arrays(limit=1))
def test_places_lead_to_what_is_not_zero(x: Any) -> None:
    places = eval_op("non_zero", x=np.trunc(x))
    np.testing.assert_array_equal(np.trunc(x)[tuple(places.T)], np.trunc(x)[np.trunc(x) != 0])
