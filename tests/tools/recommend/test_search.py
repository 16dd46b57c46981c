"""The search on simulated sensitivities: what it finds is measured, and near the best."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.tools._recommend_search import allocate, best, best_single, repaired, search
from tests.tools.recommend.simulated import SimulatedEvaluator, model, single, size_of, unit


@pytest.mark.drawn
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), factor=st.floats(0.05, 20), limit=st.floats(1e-4, 1e-2))
@pytest.mark.slow
def test_what_is_recommended_was_measured_and_passed(
    seed: int, factor: float, limit: float
) -> None:
    units, losses = model(6, seed)
    evaluator = SimulatedEvaluator(losses, limit, factor=factor)
    found = list(search(units, losses, limit, evaluator))
    assert found == evaluator.stacks
    winner = best(found)
    if winner is None:
        # Not even the least loss passes, which was measured too.
        assert evaluator.kl(single(units, "8")) > limit
        assert min(c.kl for c in found) == evaluator.kl(single(units, "8"))
        return
    assert winner.passed
    assert evaluator.kl(winner.choice) <= limit
    ideal = allocate(units, losses, limit / factor, {})
    step = max(u.options[-1].size - u.options[0].size for u in units)
    assert winner.size <= size_of(ideal) + 2 * step


@pytest.mark.drawn
@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
@pytest.mark.slow
def test_wrong_sensitivities_cost_bytes_but_nothing_false_is_said(seed: int, other: int) -> None:
    """The search believes the sensitivities of another model."""
    units, losses = model(6, seed)
    believed = dict(zip(units, model(6, other)[1].values(), strict=True))
    evaluator = SimulatedEvaluator(losses, 2e-3)
    winner = best(list(search(units, believed, 2e-3, evaluator)))
    if evaluator.kl(single(units, "8")) <= 2e-3:
        assert winner is not None
        assert evaluator.kl(winner.choice) <= 2e-3


def test_a_shard_that_fails_gets_more_bits_where_the_error_is() -> None:
    units, losses = model(3, 1)
    needs = {units[2]: "8"}
    evaluator = SimulatedEvaluator(losses, 1.0, needs=needs)
    winner = best(list(search(units, losses, 1.0, evaluator)))
    assert winner is not None
    assert winner.choice == {u: needs.get(u, "4") for u in units}


def test_a_shard_over_its_budget_gets_fewer_bits() -> None:
    units, losses = model(3, 2)
    most = sum(u.option("6").size for u in units[:2])
    evaluator = SimulatedEvaluator(losses, 1.0, most={"L00": most})
    caps: dict[object, float] = {}
    made = repaired(single(units, "8"), losses, caps, evaluator)  # type: ignore[arg-type]
    assert evaluator.failure("L00", made) is None
    assert {made[u] for u in units[2:]} == {"8"}
    assert not caps


def test_what_cannot_be_mended_is_measured_as_failed() -> None:
    q = unit("L00", "q")
    evaluator = SimulatedEvaluator({q: 1.0}, 1.0, needs={q: "16"})
    found = list(search((q,), {q: 1.0}, 1.0, evaluator))
    assert found
    assert best(found) is None
    assert found[-1].reasons == ("too coarse",)


@pytest.mark.parametrize("stacks", [0, 1, 5])
def test_no_more_is_measured_than_allowed(stacks: int) -> None:
    units, losses = model(6, 4)
    evaluator = SimulatedEvaluator(losses, 1e-3, stacks=stacks)
    assert len(list(search(units, losses, 1e-3, evaluator))) == stacks


def test_no_stack_is_measured_twice() -> None:
    units, losses = model(6, 5)
    evaluator = SimulatedEvaluator(losses, 1e-3, factor=3.0, stacks=60)
    found = list(search(units, losses, 1e-3, evaluator))
    assert len({tuple(c.choice.values()) for c in found}) == len(found)


def test_best_of_single_settings() -> None:
    units, losses = model(2, 6)
    evaluator = SimulatedEvaluator(losses, 1.0)
    found = [evaluator.candidate(s, single(units, s)) for s in ("8", "6")]
    mixed = evaluator.candidate("mixed", {units[0]: "4", **dict.fromkeys(units[1:], "6")})
    assert best([*found, mixed]) is mixed
    assert best_single([*found, mixed]) is found[1]
    assert best([]) is None
