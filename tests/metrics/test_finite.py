"""Share of finite values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.metrics import finite_fraction


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
