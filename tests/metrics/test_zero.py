"""Rows that are zero on both sides, on one, or live."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.metrics import zeros

TINY = 2.0**-24


def state(a: float, b: float, input_max: float = 1.0) -> str:
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
    assert state(a, b) == expected


@pytest.mark.parametrize(
    ("input_max", "expected"),
    [(0.0, "one"), (1.0, "one"), (100.0, "both"), (math.nan, "one"), (math.inf, "one")],
)
def test_what_is_small_beside_the_input(input_max: float, expected: str) -> None:
    assert state(50 * TINY, 0, input_max) == expected


def test_no_input_is_so_large_that_everything_is_zero() -> None:
    """fp16 has nothing above 65,504, so nothing larger enters."""
    assert state(0.01, 0, 1e30) == "one"


@given(st.floats(0, 1e-6), st.floats(0, 1e-6), st.floats(0, 1e5))
def test_every_row_has_one_state_whichever_side_is_first(a: float, b: float, most: float) -> None:
    assert state(a, b, most) == state(b, a, most)
    assert state(a, a, most) != "one"
