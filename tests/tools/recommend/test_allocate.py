"""Allocation against exhaustive search, and what it promises."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.tools._recommend_search import allocate, allowed, predicted
from tests.tools.recommend.simulated import BITS, model, size_of, unit


def test_what_is_sensitive_gets_more_bits() -> None:
    q, o = unit("L00", "q"), unit("L00", "o")
    losses = {q: 100.0, o: 0.01}
    assert allocate([q, o], losses, 0.01, {}) == {q: "8", o: "4"}


@pytest.mark.parametrize(("budget", "setting"), [(1e9, "4"), (0.0, "8")])
def test_any_budget_and_none(budget: float, setting: str) -> None:
    """Where nothing is within the budget, it is the least loss."""
    units, losses = model(3, 0)
    assert set(allocate(units, losses, budget, {}).values()) == {setting}


@given(st.integers(0, 1000), st.floats(1e-6, 10))
def test_within_the_budget_and_near_the_best_there_is(seed: int, budget: float) -> None:
    units, losses = model(2, seed)
    every = [dict(zip(units, names, strict=True)) for names in product(BITS, repeat=len(units))]
    fitting = [choice for choice in every if predicted(choice, losses) <= budget]
    found = allocate(units, losses, budget, {})
    if not fitting:
        assert predicted(found, losses) == min(predicted(choice, losses) for choice in every)
        return
    assert predicted(found, losses) <= budget
    # A Lagrangian misses the optimum by less than one unit's step.
    step = max(u.options[-1].size - u.options[0].size for u in units)
    assert size_of(found) <= min(map(size_of, fitting)) + step


@given(st.integers(0, 1000), st.floats(1e-6, 1), st.floats(1, 4))
def test_more_loss_never_takes_more_bytes(seed: int, budget: float, more: float) -> None:
    units, losses = model(4, seed)
    sizes = [size_of(allocate(units, losses, b, {})) for b in (budget, budget * more)]
    least = predicted(allocate(units, losses, 0.0, {}), losses)
    assert sizes[1] <= sizes[0] or budget < least


def test_caps_hold_at_any_price() -> None:
    q, o = unit("L00", "q"), unit("L00", "o")
    caps = {q: q.option("6").sse}
    assert allocate([q, o], {q: 0.0, o: 0.0}, 1.0, caps) == {q: "6", o: "4"}
    assert [option.setting for option in allowed(q, {q: 0.0})] == ["8"]
