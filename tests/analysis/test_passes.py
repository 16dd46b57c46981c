"""One pass over all texts says what the chain says prompt by prompt."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.analysis.passes import Known, Passes
from pytest_ane.chain.chain import NO_TOKEN, Chain, ChainStep
from pytest_ane.chain.exact import exact_chain
from pytest_ane.core.arrays import FloatArray
from tests.gates.behaviour.toys import golden, toy

EXACT = toy(6)
GOLDEN = golden(EXACT, [1, 5, 3, 8, 2], [7, 0, 4], [6], greedy=4)


@pytest.mark.parametrize("off", [0.0, 0.3, 1.0])
def test_logits_and_greedy_text_are_the_chains(off: float) -> None:
    chain = toy(6, base=off)
    known = Passes(GOLDEN).run(chain)
    for prompt in GOLDEN:
        np.testing.assert_allclose(
            known.logits(prompt.ids), chain.logits(prompt.ids), rtol=1e-4, atol=1e-5
        )
        tokens, leads = known.answer(prompt.ids, 4)[1:]
        own, own_leads = chain.answer(prompt.ids, 4)[1:]
        different = [a != b for a, b in zip(own, prompt.greedy, strict=True)]
        same = different.index(True) + 1 if True in different else 4
        assert tokens[:same] == own[:same]
        assert leads[:same] == pytest.approx(own_leads[:same], abs=1e-4)


def test_no_greedy_tokens() -> None:
    assert Passes(GOLDEN).run(EXACT).answer(GOLDEN[0].ids, 0)[1:] == ((), ())


def test_of_the_same_prompt_twice_the_longer_continuation_is_known() -> None:
    twice = [*golden(EXACT, [1, 2], greedy=4), *golden(EXACT, [1, 2], greedy=1)]
    for prompts in (twice, twice[::-1]):
        assert Passes(prompts).run(EXACT).answer((1, 2), 4).tokens == twice[0].greedy


def test_a_logit_that_is_not_finite_is_no_token() -> None:
    rows = np.array([[0, 1], [1, 0], [np.nan, 0]], np.float32)
    known = Known(EXACT.embed, (), rows={(1, 2): rows})
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
    chain, prompts = counting(toy(6, base=0.3), ran), golden(EXACT, [1, 5, 3])
    passes = Passes(prompts, budget)
    passes.run(chain)
    assert ran == [step.shard for step in chain.steps]
    ran.clear()
    mixed = exact_chain(chain, counting(EXACT, ran), ["L04"])
    known = passes.run(mixed)
    assert [name for name in ran if name[0] == "L"] == (again or [f"L{i:02d}" for i in range(6)])
    np.testing.assert_allclose(
        known.logits(prompts[0].ids), mixed.logits(prompts[0].ids), rtol=1e-4, atol=1e-5
    )
