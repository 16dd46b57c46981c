"""Finding shards to blame: on simulated verdicts, with counts, and on a toy stack."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.verdict import Figure, Finding, Verdict, nothing
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.chain import NO_TOKEN, Chain, ChainStep
from pytest_ane.probes.exact_chain import exact_chain
from pytest_ane.tools.bisect import (
    Bisection,
    Exact,
    PrecomputedChain,
    StackEvaluation,
    StackRunner,
    bisect,
    evaluation_line,
    most_evaluations,
    search,
    sentence,
)
from tests.gates.behaviour.toys import POLICY, golden, stack_of, states_of, toy


def suspects(count: int, seed: int) -> list[str]:
    found = [f"L{i:02d}" for i in range(count)]
    random.Random(seed).shuffle(found)
    return found


def counted(found: Bisection, asked: list[Exact]) -> None:
    assert found.evaluations == len(asked) == len(set(asked))


@given(st.data(), st.integers(1, 300), st.integers(0, 99))
def test_one_or_two_are_found_within_the_bound(data: st.DataObject, count: int, seed: int) -> None:
    """Each breaks the stack by itself; the order of suspicion means nothing."""
    names = suspects(count, seed)
    guilty = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
    asked: list[Exact] = []

    def passes(exact: Exact) -> bool:
        asked.append(exact)
        return guilty <= exact

    found = search(names, passes)
    assert (found.outcome, set(found.shards)) == ("found", guilty)
    counted(found, asked)
    assert found.evaluations <= 2 + 2 * math.log2(count) * len(guilty)
    assert found.evaluations <= most_evaluations(count, len(guilty))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40), st.integers(0, 30), st.integers(0, 99))
def test_where_errors_add_up_none_can_be_spared_and_no_fewer_do(
    errors: list[int], tolerated: int, seed: int
) -> None:
    """Two that are tolerable alone may not be so together."""
    weight = {f"L{i:02d}": error for i, error in enumerate(errors)}
    order = sorted(suspects(len(errors), seed), key=lambda name: -weight[name])
    total = sum(errors)

    def passes(exact: Exact) -> bool:
        return total - sum(weight[name] for name in exact) <= tolerated

    found = search(order, passes, most=len(errors))
    assert found.outcome == ("green" if total <= tolerated else "found")
    if found.outcome == "found":
        assert passes(frozenset(found.shards))
        assert not any(passes(frozenset(found.shards) - {name}) for name in found.shards)
        fewest = next(n for n in range(len(order) + 1) if passes(frozenset(order[:n])))
        assert len(found.shards) == found.enough == fewest


@given(st.lists(st.sets(st.integers(0, 19), min_size=1, max_size=4), min_size=1, max_size=5))
def test_any_monotone_verdict_has_a_set_of_which_none_can_be_spared(ways: list[set[int]]) -> None:
    """There may be several ways to restore it."""
    wanted = [frozenset(f"L{i:02d}" for i in way) for way in ways]

    def passes(exact: Exact) -> bool:
        return any(way <= exact for way in wanted)

    found = search(suspects(20, 3), passes, most=20)
    assert found.outcome == "found"
    assert frozenset(found.shards) in wanted
    assert not any(passes(frozenset(found.shards) - {name}) for name in found.shards)


@pytest.mark.parametrize(
    ("passes", "found"),
    [
        (lambda exact: "L00" in exact, Bisection("found", ("L00",), 1, 3)),
        (lambda _: True, Bisection("green", evaluations=1)),
        (lambda _: False, Bisection("reference", evaluations=2)),
    ],
)
def test_the_least_that_a_search_takes(passes, found: Bisection) -> None:
    assert search([f"L{i:02d}" for i in range(34)], passes) == found


def test_with_many_to_blame_the_search_ends() -> None:
    names = suspects(64, 1)
    guilty = frozenset(names[:40])
    asked: list[Exact] = []

    def passes(exact: Exact) -> bool:
        asked.append(exact)
        return guilty <= exact

    found = search(names, passes, most=3)
    assert (found.outcome, found.enough, len(found.shards)) == ("many", 40, 3)
    assert set(found.shards) < guilty
    counted(found, asked)
    assert found.evaluations <= most_evaluations(64, 3)


@pytest.mark.parametrize(("shards", "bound"), [(1, 2), (2, 4), (30, 11), (34, 12), (240, 17)])
def test_the_bound(shards: int, bound: int) -> None:
    assert most_evaluations(shards, 1) == bound


EXACT = toy(9)
GOLDEN = golden(EXACT)
STATES = states_of(EXACT, GOLDEN)


def run(most: int = 4, **errors: float) -> tuple[Bisection, list[StackEvaluation]]:
    named = {name.replace("_", "."): error for name, error in errors.items()}
    trials: list[StackEvaluation] = []
    stack = toy(9, named, base=1e-4)
    found = bisect(stack_of(stack, EXACT, GOLDEN), most=most, progress=trials.append)
    assert len(trials) == found.evaluations
    return found, trials


@pytest.mark.parametrize("guilty", [*(f"L{i:02d}" for i in range(9)), "head_0", "head_1"])
def test_a_spoilt_shard_of_a_stack_is_found(guilty: str) -> None:
    found, trials = run(**{guilty: 2.0})
    assert (found.outcome, found.shards) == ("found", (guilty.replace("_", "."),))
    assert [t.verdict.status for t in trials] == ["failed", "passed", "passed"]
    assert [len(t.exact) for t in trials] == [0, 11, 1]


@pytest.mark.parametrize("errors", [{"L02": 2.0, "L07": 2.0}, {"L04": math.nan}])
def test_two_spoilt_shards_or_a_nan_are_found(errors: dict[str, float]) -> None:
    found, _ = run(**errors)
    assert (found.outcome, set(found.shards)) == ("found", {*errors})


def test_a_green_stack_needs_no_search_and_all_spoilt_are_too_many() -> None:
    found, trials = run()
    assert (found.outcome, len(trials)) == ("green", 1)
    found, _ = run(most=2, **{f"L{i:02d}": 3.0 for i in range(9)})
    assert (found.outcome, len(found.shards)) == ("many", 2)


def test_a_policy_that_the_reference_does_not_meet() -> None:
    strict = POLICY.model_copy(update={"min_greedy": 5})
    silent = golden(EXACT, [1, 5, 3], greedy=0)
    found = bisect(stack_of(toy(9), EXACT, silent, policy=strict))
    assert found == Bisection("reference", evaluations=2)


SIX = toy(6)
SIX_GOLDEN = golden(SIX, [1, 5, 3, 8, 2], [7, 0, 4], [6], greedy=4)


@pytest.mark.parametrize("off", [0.0, 0.3, 1.0])
def test_logits_and_greedy_text_are_the_chains(off: float) -> None:
    chain = toy(6, base=off)
    known = StackRunner(SIX_GOLDEN).run(chain)
    for prompt in SIX_GOLDEN:
        np.testing.assert_allclose(
            known.logits(prompt.ids), chain.logits(prompt.ids), rtol=1e-4, atol=1e-5
        )
        tokens, leads = known.answer(prompt.ids, 4)[1:]
        own, own_leads = chain.answer(prompt.ids, 4)[1:]
        different = [a != b for a, b in zip(own, prompt.greedy, strict=True)]
        same = different.index(True) + 1 if True in different else 4
        assert tokens[:same] == own[:same]
        assert leads[:same] == pytest.approx(own_leads[:same], abs=1e-4)


def test_of_the_same_prompt_twice_the_longer_continuation_is_known() -> None:
    twice = [*golden(SIX, [1, 2], greedy=4), *golden(SIX, [1, 2], greedy=1)]
    for prompts in (twice, twice[::-1]):
        known = StackRunner(prompts).run(SIX)
        assert known.answer((1, 2), 4).tokens == twice[0].greedy
        assert known.answer((1, 2), 0)[1:] == ((), ())


@pytest.mark.parametrize(("greedy", "answered"), [(2, 3), (4, 1), (0, 2)])
def test_a_reference_s_answer_is_run_with_its_prompt(greedy: int, answered: int) -> None:
    """Greedy text goes on after the prompt, whichever of the two is longer."""
    (plain,) = golden(SIX, [1, 5, 3], greedy=4)
    ids = (*plain.ids, *plain.greedy[:answered])
    prompt = replace(plain, ids=ids, greedy=plain.greedy[:greedy], answered=answered)
    known = StackRunner([prompt]).run(SIX)
    assert known.answer(ids, greedy, own=3).tokens == plain.greedy[:greedy]
    np.testing.assert_allclose(known.logits(ids), SIX.logits(ids), rtol=1e-4, atol=1e-5)


def test_a_logit_that_is_not_finite_is_no_token() -> None:
    rows = np.array([[0, 1], [1, 0], [np.nan, 0]], np.float32)
    known = PrecomputedChain(SIX.embed, (), rows={(1, 2): rows})
    assert known.answer((1, 2), 2).tokens == (0, NO_TOKEN)


def counting(chain: Chain, ran: list[str]) -> Chain:
    def counted(step: ChainStep) -> ChainStep:
        def run(x: FloatArray) -> FloatArray:
            ran.append(step.shard)
            return step.open()(x)

        return ChainStep(step.wire, lambda: run, step.sees)

    return Chain(chain.embed, tuple(map(counted, chain.steps)))


@pytest.mark.parametrize(("budget", "again"), [(1 << 20, ["L04", "L05"]), (0, None)])
def test_equal_beginnings_are_run_once(budget: int, again: list[str] | None) -> None:
    """Only within the budget; without any, all is run again, to the same end."""
    ran: list[str] = []
    chain, prompts = counting(toy(6, base=0.3), ran), golden(SIX, [1, 5, 3])
    passes = StackRunner(prompts, budget)
    passes.run(chain)
    assert ran == [step.shard for step in chain.steps]
    ran.clear()
    mixed = exact_chain(chain, counting(SIX, ran), ["L04"])
    known = passes.run(mixed)
    assert [name for name in ran if name[0] == "L"] == (again or [f"L{i:02d}" for i in range(6)])
    np.testing.assert_allclose(
        known.logits(prompts[0].ids), mixed.logits(prompts[0].ids), rtol=1e-4, atol=1e-5
    )


# In words.


@pytest.mark.parametrize(
    ("found", "status", "says"),
    [
        (Bisection("green", evaluations=1), "failed",
         "m is green as it is: no shard is to blame (1 stack evaluation)."),
        (Bisection("found", ("L07",), 1, 3), "failed",
         "L07 is to blame: exact, nothing fails (3 stack evaluations)."),
        (Bisection("found", ("L07", "L02"), 2, 5), "unproven",
         "L02, L07 are to blame: exact, nothing fails, and the verdict is unproven: Why (5 stack "
         "evaluations)."),
        (Bisection("unproven", evaluations=1), "unproven",
         "m is unproven as it is, so no shard can be blamed: Why (1 stack evaluation)."),
        (Bisection("many", ("L07", "L02"), 12, 20), "failed",
         "More than 2 shards are to blame: the 12 worst of 34 have to be exact for a green "
         "verdict; pytest-ane drift shows what each contributes (20 stack evaluations)."),
        (Bisection("reference", evaluations=2), "failed",
         "The reference itself does not meet the policy: Why (2 stack evaluations)."),
    ],
)  # fmt: skip
def test_the_sentence(found: Bisection, status, says: str) -> None:
    verdict = Verdict("behaviour", "m", findings=(Finding(status, "Why"),))
    assert sentence(found, "m", 34, verdict) == says


@pytest.mark.parametrize(
    ("count", "says"),
    [(0, "none"), (2, "L00, L01"), (9, "L00, L01, L02, L03, L04, L05 and 3 more"), (34, "all")],
)
def test_a_trial(count: int, says: str) -> None:
    unproven = nothing("behaviour", "m", "Why")
    found = StackEvaluation(tuple(f"L{i:02d}" for i in range(count)), unproven)
    assert evaluation_line(found, 3, 34) == f" 3. exact: {says} - unproven (Why)"


def test_a_trial_with_its_numbers() -> None:
    facts = {"top1": 0.951, "kl.mean": 0.02651, "greedy.agreed": 3}
    green = Verdict("behaviour", "m", tuple(Figure(*fact) for fact in facts.items()))
    assert evaluation_line(StackEvaluation(("L07",), green), 12, 34) == (
        "12. exact: L07 - green (top-1 95.1%, KL 0.0265, 3 greedy tokens)"
    )
