"""Many positions in a few numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.metrics.logits import Position
from pytest_ane.metrics.summary import Spread, Summary

GOOD = Position(0.9, 0.25, True, 0, 0.95, 1.0, math.log(4), math.log(2))


def test_percentiles_lie_between_values() -> None:
    """Of 0 to 20, the 5th percentile is the second of 21 values."""
    assert Spread.of(list(range(21))) == Spread(0, 1, 10, 19, 20)
    assert Spread.of([7.0]) == Spread(7, 7, 7, 7, 7)


@pytest.mark.parametrize("at", range(3))
def test_nan_is_in_every_number(at: int) -> None:
    values = [1.0, 2.0, 3.0]
    values[at] = math.nan
    spread = Spread.of(values)
    assert all(
        math.isnan(x) for x in (spread.min, spread.p5, spread.median, spread.p95, spread.max)
    )


def test_infinity_is_no_number_to_pass() -> None:
    assert not Spread.of([1.0, math.inf]).p95 <= 1e300


def test_a_summary() -> None:
    found = Summary.of([GOOD, replace(GOOD, kl=0.75, top1=False, rank=3, nll=0.0)])
    assert (found.top1, found.kl, found.rank) == (0.5, 0.5, 3)
    assert found.cosine == Spread.of([0.95, 0.95])
    assert found.perplexity == pytest.approx(2)
    assert found.reference_perplexity == pytest.approx(2)
    assert found.perplexity_increase == pytest.approx(0)


def test_what_was_not_recorded_is_not_made_up() -> None:
    found = Summary.of([Position(0.9, 0.25, True, 0)])
    assert (found.cosine, found.perplexity, found.perplexity_increase) == (None, None, None)


@pytest.mark.parametrize(("nll", "expected"), [(math.nan, 1.0), (1.0, math.nan), (1e9, 1e9)])
def test_no_increase_is_none_that_is_not_finite(nll: float, expected: float) -> None:
    increase = Summary.of([replace(GOOD, nll=nll, reference_nll=expected)]).perplexity_increase
    assert increase is not None
    assert not increase <= 1e300


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50))
def test_a_spread_is_in_order_and_within(values: list[float]) -> None:
    s = Spread.of(values)
    assert min(values) == s.min <= s.p5 <= s.median <= s.p95 <= s.max == max(values)
    assert s.median == pytest.approx(float(np.median(values)))
