"""Units, allocation and search on simulated sensitivities: what is found is near the best."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.make import Census, Distortion
from pytest_ane.manifest import Linear, Palettize, Uncompressed
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.tools._recommend_search import (
    Option,
    Unit,
    allocate,
    allowed,
    best,
    predicted,
    repaired,
    search,
    shard_settings,
    units_of,
)
from tests.tools.recommend.simulated import BITS, SimulatedEvaluator, model, single, size_of, unit

MENU = {"six": Palettize(nbits=6, group_size=16), "eight": Palettize(nbits=8), "int8": Linear()}


def measured(sizes: dict[str, int], sse: float) -> CompressionMeasurement:
    """Weights by name with bytes; 0 for one that was left as it is."""
    weights = tuple(
        Weight(name, (8, 8), size or 128, 8, PALETTE if size else ())
        for name, size in sizes.items()
    )
    errors = tuple(Distortion(name, sse if size else 0.0, 1.0) for name, size in sizes.items())
    return CompressionMeasurement(Census(weights), 1000, (), errors)


PALETTE = (Stage(op="constexpr_lut_to_dense", nbits=8, groups=1, blocks=1),)


def test_weights_alike_but_for_numbers_are_one_unit() -> None:
    names = ("expert_0_fc1", "expert_1_fc1", "router", "norm")
    built = {
        "six": measured(dict.fromkeys(names[:3], 60) | {"norm": 0}, 0.5),
        "eight": measured(dict.fromkeys(names[:2], 80) | {"router": 0, "norm": 0}, 0.1),
    }
    experts, router = units_of("L00", built, ())
    assert experts == Unit(
        "L00", "expert_*_fc*", (Option("six", 120, 1.0), Option("eight", 160, 0.2))
    )
    assert router == Unit("L00", "router", (Option("six", 60, 0.5),))
    assert units_of("L00", built, ("rout*",)) == (experts,)
    assert experts.option("eight").size == 160


def test_a_glob_that_would_name_other_weights_is_not_used() -> None:
    """`a_*` would take in `a_bias` as well."""
    built = {"six": measured({"a_0": 60, "a_1": 60, "a_bias": 0}, 0.5)}
    assert [unit_of.glob for unit_of in units_of("L00", built, ())] == ["a_0", "a_1"]


def unit_of(glob: str, size: int) -> Unit:
    return Unit("L00", glob, tuple(Option(name, size, 1.0) for name in MENU))


def test_what_most_bytes_have_is_the_table_and_the_rest_overrides() -> None:
    q, k, up = unit_of("q*", 10), unit_of("k*", 10), unit_of("up*", 100)
    made = shard_settings((q, k, up), {q: "eight", k: "int8", up: "six"}, MENU, ("router*",))
    assert made == Palettize.model_validate(
        {
            "nbits": 6,
            "group_size": 16,
            "keep": ["router*"],
            "overrides": [
                {"weights": "q*", "nbits": 8, "group_size": 32},
                {"weights": "k*", "method": "linear"},
            ],
        }
    )
    assert made.for_weight("q_0") == MENU["eight"]
    assert made.for_weight("k_0") == MENU["int8"]
    assert made.for_weight("up_0") == MENU["six"]
    assert made.for_weight("router_0") == Uncompressed()


@pytest.mark.parametrize("name", MENU)
def test_one_setting_for_all_is_that_setting(name: str) -> None:
    both = unit_of("q*", 10), unit_of("k*", 10)
    assert shard_settings(both, dict.fromkeys(both, name), MENU, ()) == MENU[name]
    assert shard_settings((), {}, MENU, ()) == Uncompressed()


def test_what_is_sensitive_gets_more_bits() -> None:
    q, o = unit("L00", "q"), unit("L00", "o")
    losses = {q: 100.0, o: 0.01}
    assert allocate([q, o], losses, 0.01, {}) == {q: "8", o: "4"}


@pytest.mark.parametrize(("budget", "setting"), [(1e9, "4"), (0.0, "8")])
def test_any_budget_and_none(budget: float, setting: str) -> None:
    """Where nothing is within the budget, it is the least loss."""
    units, losses = model(3, 0)
    assert set(allocate(units, losses, budget, {}).values()) == {setting}


@pytest.mark.drawn
@pytest.mark.slow
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


def test_caps_hold_at_any_price() -> None:
    q, o = unit("L00", "q"), unit("L00", "o")
    caps = {q: q.option("6").sse}
    assert allocate([q, o], {q: 0.0, o: 0.0}, 1.0, caps) == {q: "6", o: "4"}
    assert [option.setting for option in allowed(q, {q: 0.0})] == ["8"]


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
    assert found[-1].reasons == ("fidelity",)


@pytest.mark.parametrize(("stacks", "factor"), [(0, 1.0), (1, 1.0), (5, 1.0), (60, 3.0)])
def test_no_more_is_measured_than_allowed_and_none_twice(stacks: int, factor: float) -> None:
    units, losses = model(6, 4 + (stacks > 5))
    evaluator = SimulatedEvaluator(losses, 1e-3, factor=factor, stacks=stacks)
    found = list(search(units, losses, 1e-3, evaluator))
    assert len(found) == stacks or stacks > 5
    assert len({tuple(c.choice.values()) for c in found}) == len(found)


def test_the_smallest_that_passed_is_best() -> None:
    units, losses = model(2, 6)
    evaluator = SimulatedEvaluator(losses, 1.0)
    found = [evaluator.candidate(s, single(units, s)) for s in ("8", "4", "6")]
    assert best(found) is found[1]
    assert best([]) is None
