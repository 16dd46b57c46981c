"""Losses of what was not measured, and one shard in an exact chain; the rest needs the command."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.metrics.logits import compare_logits
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.probes.exact_chain import GoldenPrompt
from pytest_ane.tools._recommend import ExactStack, filled, lowest
from tests.models.test_chain import block, embed, following, head
from tests.tools.recommend.simulated import unit


def test_what_was_not_measured_is_like_the_same_weights_elsewhere() -> None:
    q0, q1, q2 = (unit(shard, "q") for shard in ("L00", "L01", "L02"))
    o2 = unit("L02", "o")
    assert filled([q0, q1, q2, o2], {q0: 1.0, q1: 3.0}) == {q0: 1.0, q1: 3.0, q2: 2.0, o2: 2.0}
    assert filled([q0, o2], {q0: 1.0, o2: 5.0}) == {q0: 1.0, o2: 5.0}
    assert filled([q0, o2], {}) == {}
    assert filled([q0, o2, q2], {q2: 1.0, o2: 5.0})[q0] == 1.0


@pytest.mark.parametrize("cosines", [[None, 0.98], [0.98, None], [None], []])
def test_an_undefined_cosine_is_the_lowest(cosines: list[float | None]) -> None:
    """Python's `min` of 0.98 and NaN is 0.98."""
    assert math.isnan(lowest(cosines))
    assert lowest([0.99, 0.98]) == 0.98


IDS = (2, 3, 5)


def add(amount: float) -> ChainStep:
    def run(x: FloatArray) -> FloatArray:
        return np.asarray(x + amount * np.roll(x, 1, axis=1), np.float32)

    return block("L01", run)


def chain(middle: ChainStep) -> Chain:
    return Chain(embed, (block("L00", np.tanh), middle, head("head.0", following)))


def golden(exact: Chain) -> GoldenPrompt:
    return GoldenPrompt("count", IDS, exact.logits(IDS), (), (), "")


@pytest.mark.parametrize("amount", [0.0, 0.1, 2.0])
def test_it_is_the_whole_chain_with_that_step(amount: float) -> None:
    exact = chain(add(0.0))
    prompt = golden(exact)
    whole = compare_logits(prompt.logits, chain(add(amount)).logits(IDS))[1:]
    found = ExactStack(exact, [prompt, prompt]).kl(add(amount))
    assert found == pytest.approx(np.mean([p.kl for p in whole]), abs=1e-12)
    assert (found > 1e-6) == (amount > 0)


def test_one_replacement_leaves_nothing_behind() -> None:
    exact = chain(add(0.0))
    alone = ExactStack(exact, [golden(exact)])
    before = alone.kl(add(0.5))
    alone.kl(add(3.0))
    assert alone.kl(add(0.5)) == before
    assert alone.kl(head("head.0", following)) == pytest.approx(0, abs=1e-12)
