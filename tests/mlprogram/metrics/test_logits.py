"""Statistics of logits by position: literal values, ties, and what is not finite."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.mlprogram.metrics.logits import (
    Likeliest,
    LogitSummary,
    Position,
    Quantiles,
    compare_logits,
    likeliest,
    perplexity_bound,
)

LOGITS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(2, 8)),
    elements=st.floats(-30, 30, width=32),
)


def one(reference: list[float], actual: list[float]) -> Position:
    """Statistics of one position."""
    (position,) = compare_logits(np.array([reference], np.float32), np.array([actual], np.float32))
    return position


def test_written_out() -> None:
    found = one([1, 2, 3], [1, 2, 3])
    assert (found.kl, found.top1, found.rank) == (0.0, True, 0)
    assert found.centred_cosine == pytest.approx(1)
    # Of (1/2, 1/2) and (1/4, 3/4): 1/2 ln 2 + 1/2 ln 2/3.
    found = one([0, 0], [0, math.log(3)])
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-7)
    found = one([101, 102, 103], [1, 0, 2])
    assert found.centred_cosine == pytest.approx(0.5)
    assert found.cosine == pytest.approx(307 / math.sqrt((101**2 + 102**2 + 103**2) * 5), abs=1e-6)
    assert one([3], [4]).margin == math.inf


@pytest.mark.parametrize(
    ("reference", "actual", "top1", "rank"),
    [
        ([9, 1, 2], [5, 7, 6], False, 2),
        ([9, 1, 2], [6, 7, 5], False, 1),
        ([9, 2, 1], [math.nan] * 3, False, 3),
        # Of equal logits the lower token counts first.
        ([5, 1, 1], [2, 2, 1], True, 0),
        ([5, 1, 1], [1, 2, 2], False, 2),
        ([5, 1, 1], [2, 2, 2], True, 0),
        # As from a head that gives zeros: a tie of all is no agreement.
        ([1, 2, 5], [0, 0, 0], False, 2),
    ],
)
def test_the_rank_of_the_reference_s_likeliest_token(
    reference: list[float], actual: list[float], top1: bool, rank: int
) -> None:
    found = one(reference, actual)
    assert (found.top1, found.rank) == (top1, rank)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_logit_that_is_not_finite_is_no_agreement(bad: float, position: int) -> None:
    actual = [9.0, 2.0, 1.0]
    actual[position] = bad
    found = one([9, 2, 1], actual)
    assert not found.top1
    assert math.isnan(found.centred_cosine)
    assert not found.kl <= 1e6


def test_a_reference_that_is_not_finite_agrees_with_nothing() -> None:
    found = one([math.nan, 2, 1], [9, 2, 1])
    assert math.isnan(found.centred_cosine)
    assert math.isnan(found.kl)


@given(LOGITS, st.data())
def test_it_is_the_formula(reference: np.ndarray, data: st.DataObject) -> None:
    actual = data.draw(
        arrays.arrays(np.float32, reference.shape, elements=st.floats(-30, 30, width=32))
    )
    for found, a, b in zip(compare_logits(reference, actual), reference, actual, strict=True):
        p, q = (np.exp(x.astype(np.float64)) for x in (a, b))
        p, q = p / p.sum(), q / q.sum()
        assert found.kl == pytest.approx(float(np.sum(p * np.log(p / q))), abs=1e-9)
        assert found.kl >= -1e-12
        assert found.top1 is bool(a.argmax() == b.argmax())
        assert found.rank == list(np.argsort(-b, kind="stable")).index(a.argmax())


def test_the_likeliest_tokens() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8; of equal ones the lower token comes first."""
    logits = np.log(np.array([[1, 2, 8, 4, 1]], np.float32) / 16)
    (found,) = likeliest(logits, count=4)
    assert found.tokens == (2, 3, 1, 0)
    assert found.logprobs == (-0.6931, -1.3863, -2.0794, -2.7726)
    assert found.tail == -2.7726
    (all_of_them,) = likeliest(logits)
    assert (len(all_of_them.tokens), all_of_them.tail) == (5, -math.inf)
    (certain,) = likeliest(np.array([[0.0, 1e4]], np.float32), count=1)
    assert certain == Likeliest((1,), (0.0,), -math.inf)


def test_no_token_is_likeliest_where_a_logit_is_not_finite() -> None:
    first, second = likeliest(np.array([[1, math.nan], [2, 1]], np.float32))
    assert (first.tokens, first.logprobs, math.isnan(first.tail)) == ((), (), True)
    assert second.tokens == (0, 1)


def test_what_is_said_of_the_next_token() -> None:
    """Probabilities 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2; the text goes on with token 0."""
    reference = np.log(np.array([[2, 1, 1]] * 2, np.float32))
    actual = np.log(np.array([[1, 1, 2]] * 2, np.float32))
    first, last = compare_logits(reference, actual, (1, 0))
    assert (first.nll, first.reference_nll) == (1.3863, 0.6931)
    assert (last.nll, last.reference_nll) == (None, None)
    assert (first.margin, last.margin) == (0.6931, 0.6931)


def test_a_certain_next_token_has_no_loss() -> None:
    logits = np.array([[1e4, 0], [0, 1]], np.float32)
    assert compare_logits(logits, logits, (1, 0))[0].nll == 0
    assert compare_logits(logits, logits, (0, 1))[0].nll == 1e4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_has_no_loss_and_no_cosine(bad: float) -> None:
    position, _ = compare_logits(
        np.ones((2, 3), np.float32), np.array([[1, bad, 2], [1, 2, 3]]), (0, 0)
    )
    assert position.cosine is not None
    assert position.nll is not None
    assert math.isnan(position.cosine)
    assert not position.nll <= 1e6
    assert not position.defined


GOOD = Position(0.9, 0.25, True, 0, 0.95, 1.0, math.log(4), math.log(2))


def test_percentiles_lie_between_values() -> None:
    """Of 0 to 20, the 5th percentile is the second of 21 values."""
    assert Quantiles.of(list(range(21))) == Quantiles(0, 1, 10, 19, 20)
    assert Quantiles.of([7.0]) == Quantiles(7, 7, 7, 7, 7)
    assert not Quantiles.of([1.0, math.inf]).p95 <= 1e300


@pytest.mark.parametrize("at", range(3))
def test_nan_is_in_every_number(at: int) -> None:
    values = [1.0, 2.0, 3.0]
    values[at] = math.nan
    spread = Quantiles.of(values)
    assert all(
        math.isnan(x) for x in (spread.min, spread.p5, spread.median, spread.p95, spread.max)
    )


def test_a_summary() -> None:
    found = LogitSummary.of([GOOD, replace(GOOD, kl=0.75, top1=False, rank=3, nll=0.0)])
    assert (found.top1, found.kl, found.rank) == (0.5, 0.5, 3)
    assert found.cosine == Quantiles.of([0.95, 0.95])
    assert found.perplexity == pytest.approx(2)
    assert found.reference_perplexity == pytest.approx(2)
    assert found.perplexity_increase == pytest.approx(0)


def test_what_was_not_recorded_is_not_made_up() -> None:
    found = LogitSummary.of([Position(0.9, 0.25, True, 0)])
    assert (found.cosine, found.perplexity, found.perplexity_increase) == (None, None, None)


@pytest.mark.parametrize(("nll", "expected"), [(math.nan, 1.0), (1.0, math.nan), (1e9, 1e9)])
def test_no_increase_is_none_that_is_not_finite(nll: float, expected: float) -> None:
    increase = LogitSummary.of([replace(GOOD, nll=nll, reference_nll=expected)]).perplexity_increase
    assert increase is not None
    assert not increase <= 1e300


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "bound"),
    [
        # exp(7.5528 + 2 * 3.2719 / sqrt(98)) for the default model and its prompts.
        (49_152, 98, 3691.4),
        (262_144, 10**9, 5045.4),
        (49_152, 16, None),
        (64, 20, None),
        (64, 0, None),
        (1, 100, None),
    ],
)
def test_what_token_frequencies_alone_would_give(
    vocabulary: int, tokens: int, bound: float | None
) -> None:
    assert perplexity_bound(vocabulary, tokens) == (bound and pytest.approx(bound, rel=1e-4))
