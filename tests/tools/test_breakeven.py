"""When drafts pay: figures of published notes, identities, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.tools._speculate import BreakEven, acceptance, expected_tokens

SHARES = st.floats(0, 1)
WIDTHS = st.integers(2, 12)
TIMES = st.floats(1e-4, 10)


def speedup(cost: BreakEven, a: float) -> float:
    """Speed against plain steps at independent acceptance `a`."""
    return expected_tokens(a, cost.width) / cost.tokens_needed


def test_the_notes_verifier_cannot_pay() -> None:
    """109 ms a step, 483 ms a call of width 4: the notes' formula said an acceptance of 0.10."""
    found = BreakEven(0.109, 0.483, 4)
    assert found.tokens_needed == pytest.approx(4.4312, abs=1e-4)
    assert found.share_needed is None
    assert found.acceptance_needed is None
    assert found.best == pytest.approx(0.9027, abs=1e-4)
    # What they ran: 32 calls of 96 drafts, of which 7 were accepted, in 15.455 s.
    assert found.tok_s(32, 7, 0) == pytest.approx(2.52, abs=0.01)


def test_a_faster_verifier_could_pay() -> None:
    found = BreakEven(0.109, 0.300, 4)
    assert found.tokens_needed == pytest.approx(2.7523, abs=1e-4)
    assert found.share_needed == pytest.approx(0.5841, abs=1e-4)
    assert found.acceptance_needed == pytest.approx(0.7543, abs=1e-4)
    assert found.best == pytest.approx(1.4533, abs=1e-4)


def test_at_436_ms_every_draft_has_to_be_right() -> None:
    at = BreakEven(0.109, 0.436, 4)
    assert at.share_needed == 1
    assert at.acceptance_needed == pytest.approx(1)
    assert BreakEven(0.109, math.nextafter(0.436, 1), 4).share_needed is None


def test_a_call_no_dearer_than_a_step_always_pays() -> None:
    found = BreakEven(1.0, 0.8, 4)
    assert (found.share_needed, found.acceptance_needed) == (0, pytest.approx(0))
    assert found.best == pytest.approx(5)


def test_steps_without_a_draft_cost_a_step() -> None:
    found = BreakEven(0.1, 0.2, 4)
    assert found.tok_s(calls=10, accepted=20, steps=10) == pytest.approx(40 / 3)
    assert found.tok_s(calls=10, accepted=20, steps=10, again=10) == pytest.approx(10)
    assert found.tok_s(calls=0, accepted=0, steps=5) == pytest.approx(10)


@pytest.mark.parametrize(
    ("t1", "tv", "width"),
    [(0, 1, 4), (1, 0, 4), (-1, 1, 4), (math.nan, 1, 4), (1, math.inf, 4), (1, 1, 1)],
)
def test_what_is_no_verifier(t1: float, tv: float, width: int) -> None:
    with pytest.raises(ValueError, match="no verifier"):
        BreakEven(t1, tv, width)


@given(st.floats(0, 0.999), WIDTHS)
def test_the_sum_is_the_closed_form(a: float, width: int) -> None:
    assert expected_tokens(a, width) == pytest.approx((1 - a**width) / (1 - a))


@given(SHARES, WIDTHS)
def test_acceptance_undoes_the_yield(a: float, width: int) -> None:
    assert expected_tokens(acceptance(expected_tokens(a, width), width), width) == pytest.approx(
        expected_tokens(a, width)
    )


@given(TIMES, TIMES, WIDTHS)
def test_what_is_needed_is_where_the_speed_is_the_same(t1: float, tv: float, width: int) -> None:
    found = BreakEven(t1, tv, width)
    assert (found.share_needed is not None) == (speedup(found, 1) >= 1)
    if found.acceptance_needed is not None and found.share_needed is not None and tv >= t1:
        assert speedup(found, found.acceptance_needed) == pytest.approx(1)
        accepted = found.share_needed * (width - 1)
        assert (1 + accepted) / tv == pytest.approx(1 / t1)


@given(st.floats(0.02, 0.98), WIDTHS, st.integers(0, 2**32 - 1))
def test_simulated_calls_yield_what_is_expected(a: float, width: int, seed: int) -> None:
    """Drafts drawn one by one; within 5 standard errors of 20,000 calls."""
    calls = 20_000
    right = np.random.default_rng(seed).random((calls, width - 1)) < a
    tokens = 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1)
    error = tokens.std() / calls**0.5
    assert abs(tokens.mean() - expected_tokens(a, width)) <= 5 * error + 1e-3


@given(st.floats(0.02, 0.98), WIDTHS, st.floats(0.2, 3), st.integers(0, 2**32 - 1))
def test_simulated_runs_break_even_where_it_says(
    a: float, width: int, cost: float, seed: int
) -> None:
    """A run of calls, timed, is faster than steps on one side of the acceptance needed."""
    found = BreakEven(1.0, cost * width, width)
    right = np.random.default_rng(seed).random((20_000, width - 1)) < a
    accepted = int(np.logical_and.accumulate(right, axis=1).sum())
    simulated = found.tok_s(20_000, accepted, 0) * found.t1
    assert simulated == pytest.approx(speedup(found, a), rel=0.05)
    needed = found.acceptance_needed
    if needed is None:
        assert simulated < 1
    elif abs(speedup(found, a) - 1) > 0.05:
        assert (simulated > 1) == (a > needed)
