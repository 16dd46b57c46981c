"""Drift along a stack, and the verdict on its shards."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from pytest_ane.gates.behaviour import measure
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Wire
from pytest_ane.probes.exact_chain import exact_chain
from pytest_ane.tools.drift import (
    Causes,
    Drift,
    Reading,
    ShardEffect,
    compare_rows,
    find_causes,
    measure_drift,
    sentence,
)
from tests.gates.behaviour.toys import POLICY, final, golden, stack_of, states_of, toy
from tests.models.test_chain import embed, head

EXACT = toy(5)
GOLDEN = golden(EXACT)
NAMES = [step.shard for step in EXACT.steps]


def drift(chain: Chain) -> Drift:
    return measure_drift(stack_of(chain, EXACT, GOLDEN, backend="toy"))


def test_the_reference_does_not_drift() -> None:
    found = drift(EXACT)
    assert [one.shard for one in found.shards] == NAMES
    for one in found.shards:
        for readings in (one.stack, one.own):
            assert readings.first is not None
            assert readings.rest.cosine == pytest.approx(1)
            assert readings.rest.relative_l2 < 1e-5
        assert all(p.top1 and p.kl < 1e-6 for r in one.end.prompts for p in r.positions)
    assert found.provenance == {"backend": "toy"}


def test_each_shard_alone_is_the_stack_with_all_others_exact() -> None:
    chain = toy(5, base=0.4)
    for one in drift(chain).shards:
        mixed = exact_chain(chain, EXACT, set(NAMES) - {one.shard})
        for prompt, result in zip(GOLDEN, one.end.prompts, strict=True):
            wanted = measure(mixed, [prompt], states_of(EXACT, GOLDEN), str, {}).prompts[0]
            assert [p.kl for p in result.positions] == pytest.approx(
                [p.kl for p in wanted.positions], abs=1e-5
            )
        if one.shard[0] == "L":
            ends = [(final(EXACT, g.ids), final(mixed, g.ids)) for g in GOLDEN]
            wanted_final = compare_rows(*zip(*ends, strict=True))
            assert one.final.rest.relative_l2 == pytest.approx(
                wanted_final.rest.relative_l2, rel=1e-3
            )
        else:
            assert one.final is None


def test_error_accumulates_along_the_stack_as_it_is() -> None:
    chain = toy(5, base=0.4)
    found = drift(chain)
    last = next(one for one in found.shards if one.shard == "L04")
    ends = [(final(EXACT, g.ids), final(chain, g.ids)) for g in GOLDEN]
    assert last.stack == compare_rows(*zip(*ends, strict=True))
    assert last.stack.rest.relative_l2 > 1.5 * last.own.rest.relative_l2
    for prompt, result in zip(GOLDEN, found.end.prompts, strict=True):
        wanted = measure(chain, [prompt], states_of(EXACT, GOLDEN), str, {}).prompts[0]
        assert result.positions == wanted.positions


def test_one_spoilt_shard_shows_from_there_on_and_nowhere_alone() -> None:
    found = drift(toy(5, {"L02": 1.0}))
    errors = {one.shard: one for one in found.shards}
    for name, one in errors.items():
        assert (one.own.rest.relative_l2 > 1e-3) == (name == "L02")
        assert (one.stack.rest.relative_l2 > 1e-3) == (name not in ("L00", "L01"))


def test_nan_is_undefined_and_not_hidden() -> None:
    found = drift(toy(5, {"L03": math.nan}))
    by_name = {one.shard: one for one in found.shards}
    assert math.isnan(by_name["L03"].own.rest.cosine or 0)
    assert math.isnan(by_name["L03"].own.rest.largest)
    assert math.isnan(by_name["L03"].end.prompts[0].positions[1].kl)
    assert by_name["L02"].end.prompts[0].positions[1].kl == pytest.approx(0, abs=1e-6)


def test_packs_are_compared_by_the_sum_so_far() -> None:
    """The second pack is spoilt; its sum with the first is what drifts, then the combined `x`."""

    def packs(scale: float) -> Chain:
        return Chain(
            embed,
            (
                ChainStep(Wire("p0", gives="moe"), lambda: lambda x: 2 * x),
                ChainStep(
                    Wire("p1", gives="moe", mode="add"), lambda: lambda x: scale * x[:, ::-1]
                ),
                ChainStep(Wire("p2", takes=("x", "moe")), lambda: lambda x: x[:, :7] + x[:, 7:]),
                head("head.0", lambda x: x),
            ),
        )

    exact = packs(1)
    prompts = golden(exact, [1, 2])
    states = {"p0": lambda x: 2 * x, "p1": lambda x: x[:, ::-1], "p2": lambda x: 3 * x + x[:, ::-1]}
    x = embed([1, 2])
    found = measure_drift(stack_of(packs(3), exact, prompts, lambda _, name: (x, states[name](x))))
    p0, p1, p2, _ = found.shards
    assert p0.stack.rest == Reading(1, 0, 2)
    assert p1.stack.rest.relative_l2 == pytest.approx(2 / 5**0.5)
    assert p1.own.rest.relative_l2 == pytest.approx(2)
    assert p2.own.rest == Reading(pytest.approx(1), 0, 3)
    assert p2.stack.rest.relative_l2 == pytest.approx(2 / 10**0.5)


def test_rows_that_are_zero_on_both_sides_are_not_compared() -> None:
    zero, one = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert compare_rows([zero], [zero]).rest == Reading(None, 0.0, 0.0)
    rest = compare_rows([zero], [one]).rest
    assert math.isnan(rest.cosine or 0)
    assert math.isinf(rest.relative_l2)


def test_a_prompt_of_one_token_has_nothing_but_position_0() -> None:
    one = np.ones((1, 3), np.float32)
    assert compare_rows([one], [one]).rest is None
    assert compare_rows([one], [one]).first == Reading(pytest.approx(1), 0, 1)


NINE = toy(9)
NINE_GOLDEN = golden(NINE)


def causes(base: float = 1e-4, policy: BehaviourPolicy = POLICY, **errors: float) -> Causes:
    chain = toy(9, {name.replace("_", "."): error for name, error in errors.items()}, base)
    found = measure_drift(stack_of(chain, NINE, NINE_GOLDEN))
    return find_causes(found, policy, "toy")


@pytest.mark.drawn
@pytest.mark.parametrize("guilty", [*(f"L{i:02d}" for i in range(9)), "head_0", "head_1"])
def test_the_one_that_breaks_it(guilty: str) -> None:
    found = causes(**{guilty: 2.0})
    assert found.stack.status == "failed"
    assert found.breaking == (guilty.replace("_", "."),)
    assert found.effects[0].share > 0.99
    assert found.half == 1


def test_of_two_that_break_it_a_nan_is_worse_than_any_number() -> None:
    found = causes(L02=2.0, L06=math.nan)
    assert found.effects[0].shard == "L06"
    assert set(found.breaking) == {"L02", "L06"}


def test_all_wear_it_down() -> None:
    """No shard alone has as much KL as is allowed; together they have more."""
    lenient = BehaviourPolicy(
        min_top1=0.01, max_kl=0.005, min_centred_cosine=0.01, min_greedy=0, min_positions=1
    )
    found = causes(base=0.03, policy=lenient)
    assert found.stack.status == "failed"
    assert found.breaking == ()
    assert found.half > 1
    assert sum(effect.share for effect in found.effects) == pytest.approx(1)


def test_a_stack_that_holds() -> None:
    found = causes()
    assert (found.stack.status, found.reference.status) == ("passed", "passed")
    assert found.breaking == ()


# In words.

Status = Literal["passed", "failed", "unproven"]


def verdict(status: Status) -> Verdict:
    return Verdict(
        "behaviour", "m", findings=() if status == "passed" else (Finding("failed", "Why"),)
    )


def judged(stack: Status, *parts: tuple[str, float, bool], reference: Status = "passed") -> Causes:
    total = sum(kl for _, kl, _ in parts)
    shares = [ShardEffect(name, kl, kl / (total or math.nan), breaks) for name, kl, breaks in parts]
    found = map(verdict, (stack, reference))
    return Causes(*found, tuple(shares))


EVEN = [(f"L{i:02d}", 1.0, False) for i in range(10)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (judged("failed", ("L07", 9, True), ("L01", 1, False)),
         "L07 breaks it: it fails alone in an otherwise exact stack."),
        (judged("failed", ("L07", math.nan, True), ("L01", 0, False)),
         "L07 breaks it: it fails alone in an otherwise exact stack."),
        (judged("failed", ("L07", 9, True), ("L03", 9, True), ("L01", 2, False)),
         "L07, L03 break it: each fails alone in an otherwise exact stack."),
        (judged("failed", *((name, kl, True) for name, kl, _ in EVEN)),
         "L00, L01, L02, L03 and 6 more break it: each fails alone in an otherwise exact stack."),
        (judged("failed", *EVEN),
         "Gradual, no single shard fails alone: L00 has the most of the KL (10%), and 5 of 10 "
         "make up half."),
        (judged("passed", *EVEN),
         "No shard breaks it: L00 has the most of the KL (10%), and 5 of 10 make up half."),
        (judged("passed", ("L07", 0.0, False)), "No shard breaks it: no KL at all."),
        (judged("passed", ("L07", 9, True), ("L01", 1, False)),
         "L07 breaks it: it fails alone in an otherwise exact stack, and the stack as it is passes "
         "all the same."),
        (judged("failed", *EVEN, reference="unproven"),
         "The reference itself does not meet the policy: Why"),
    ],
)  # fmt: skip
def test_the_sentence(result: Causes, expected: str) -> None:
    assert sentence(result) == expected
