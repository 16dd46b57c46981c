"""Greedy decoding, timed by part, on chains whose next token is known."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.chain.chain import Chain, ChainStep, ShardRun
from pytest_ane.chain.decode import decode
from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import ExecutionError
from pytest_ane.families import Wire
from tests.chain.test_chain import COUNTING, embed, following, head, identity
from tests.gates.behaviour.toys import toy

PAUSE = 0.002


def noted(given: list[int], kind: str = "block", sees: str = "state") -> ChainStep:
    """A block that takes a while, and notes how many positions it was given."""

    def run(hidden: FloatArray) -> FloatArray:
        given.append(len(hidden))
        time.sleep(PAUSE)
        return hidden

    return ChainStep(Wire("L00", kind=kind), lambda: run, sees)  # type: ignore[arg-type]


def test_it_counts_on() -> None:
    assert decode(COUNTING, [4], 4).tokens == (5, 6, 0, 1)


@pytest.mark.parametrize(("sees", "lengths"), [("state", [3, 1, 1]), ("call", [3, 4, 5])])
def test_states_take_each_token_once_and_calls_the_whole_text(
    sees: str, lengths: list[int]
) -> None:
    given: list[int] = []
    chain = Chain(embed, (noted(given, sees=sees), head("head.0", following)))
    assert decode(chain, [1, 2, 3], 3).tokens == (4, 5, 6)
    assert given == lengths


def test_every_step_is_split_by_part() -> None:
    blocks = (noted([], "attention"), noted([], "mixture"), noted([], "mixture"))
    slices = (head("head.0", following), head("head.1", lambda x: x * 0))
    wired = tuple(
        ChainStep(Wire(s.shard, gives="logits", mode="append", kind="head"), s.open, s.sees)
        for s in slices
    )
    start = time.perf_counter()
    found = decode(Chain(embed, (*blocks, *wired)), [1], 4)
    wall = time.perf_counter() - start
    assert len(found.steps) == 3
    for step in found.steps:
        assert step.keys() == {"attention", "mixture", "head", "host"}
        assert step["attention"] >= PAUSE
        assert step["mixture"] >= 2 * PAUSE
        assert min(step.values()) >= 0
    assert found.prefill >= 3 * PAUSE
    assert sum(found.seconds) + found.prefill <= wall
    assert found.seconds == tuple(sum(step.values()) for step in found.steps)


def test_only_the_last_position_of_the_prompt_enters_the_head() -> None:
    given: list[int] = []

    def run(hidden: FloatArray) -> FloatArray:
        given.append(len(hidden))
        return following(hidden)

    block = ChainStep(Wire("L00"), lambda: identity, "state")
    assert decode(Chain(embed, (block, head("head.0", run))), [1, 2, 3], 2).tokens == (4, 5)
    assert given == [1, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_it_says_what_a_chain_answers(ids: list[int], count: int) -> None:
    chain = toy(2)
    assert decode(chain, ids, count).tokens == chain.answer(ids, count).tokens


def test_the_last_token_needs_no_position() -> None:
    chain = Chain(embed, COUNTING.steps, positions=5)
    assert len(decode(chain, [1, 2, 3], 3).tokens) == 3
    with pytest.raises(ExecutionError, match="prompt of 3 tokens and 4 more do not fit the 5 pos"):
        decode(chain, [1, 2, 3], 4)


def test_a_prompt_and_tokens_are_needed() -> None:
    with pytest.raises(ExecutionError, match="The prompt has no tokens"):
        decode(COUNTING, [], 1)
    with pytest.raises(ExecutionError, match="0 tokens cannot be decoded"):
        decode(COUNTING, [1], 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite(bad: float) -> None:
    """From the second position on, so that it is a step that breaks."""

    def open_sequence() -> ShardRun:
        calls = iter((0.0, bad))
        return lambda hidden: following(hidden) + np.float32(next(calls))

    wire = Wire("head.0", gives="logits", mode="append")
    chain = Chain(
        embed, (ChainStep(Wire("L00"), lambda: identity, "state"), ChainStep(wire, open_sequence))
    )
    with pytest.raises(ExecutionError, match="logits for position 3 are not all finite"):
        decode(chain, [1, 2], 3)
