"""Greedy decoding, timed by part, on chains whose next token is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import Chain, ChainStep, ShardRun
from pytest_ane.models.decode import HOST, Decoding, decode
from pytest_ane.models.families import Wire
from tests.gates.behaviour.toys import toy
from tests.models.test_chain import COUNTING, embed, following, head, identity


def noted(given: list[int], kind: str = "block", sees: str = "state") -> ChainStep:
    """A block that notes how many positions it was given."""

    def run(hidden: FloatArray) -> FloatArray:
        given.append(len(hidden))
        return hidden

    return ChainStep(Wire("L00", kind=kind), lambda: run, sees)  # type: ignore[arg-type]


def test_it_counts_on() -> None:
    assert decode(COUNTING, [4], 4).tokens == [5, 6, 0, 1]


@pytest.mark.parametrize(("sees", "lengths"), [("state", [3, 1, 1]), ("call", [3, 4, 5])])
def test_states_take_each_token_once_and_calls_the_whole_text(
    sees: str, lengths: list[int]
) -> None:
    given: list[int] = []
    chain = Chain(embed, (noted(given, sees=sees), head("head.0", following)))
    assert decode(chain, [1, 2, 3], 3).tokens == [4, 5, 6]
    assert given == lengths


def test_every_step_is_split_by_part() -> None:
    blocks = (noted([], "attention"), noted([], "mixture"), noted([], "mixture"))
    slices = (head("head.0", following), head("head.1", lambda x: x * 0))
    wired = tuple(
        ChainStep(Wire(s.shard, gives="logits", mode="append", kind="head"), s.open, s.sees)
        for s in slices
    )
    ticks = iter(range(1000))
    decoding = decode(Chain(embed, (*blocks, *wired)), [1], 4, lambda: float(next(ticks)))
    # The clock ticks once whenever it is read: before and after a shard, and around a step.
    part = {"attention": 1.0, "mixture": 2.0, "head": 2.0, "host": 6.0}
    assert decoding.steps == [part] * 3
    assert decoding.seconds == (11.0, 11.0, 11.0)


def test_only_the_last_position_of_the_prompt_enters_the_head() -> None:
    given: list[int] = []

    def run(hidden: FloatArray) -> FloatArray:
        given.append(len(hidden))
        return following(hidden)

    block = ChainStep(Wire("L00"), lambda: identity, "state")
    assert decode(Chain(embed, (block, head("head.0", run))), [1, 2, 3], 2).tokens == [4, 5]
    assert given == [1, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_it_says_what_a_chain_answers(ids: list[int], count: int) -> None:
    chain = toy(2)
    assert tuple(decode(chain, ids, count).tokens) == chain.answer(ids, count).tokens


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


def test_a_token_at_every_call() -> None:
    step = Decoding(COUNTING, [4], 4)
    assert step.tokens == [5]
    step()
    step()
    assert step.tokens == [5, 6, 0]
    assert len(step.steps) == 2


def test_the_profile_is_of_the_last_steps() -> None:
    step = Decoding(Chain(embed, (noted([]), head("head.0", following))), [1], 5)
    step.steps = [{"block": 9.0, HOST: 1.0}, {"block": 2.0, HOST: 0.5}, {"block": 4.0, HOST: 0.7}]
    assert step.profile(2) == {"block": 3.0, HOST: 0.6}


@settings(max_examples=15)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 6))
def test_the_same_tokens_as_at_once(ids: list[int], count: int) -> None:
    step = Decoding(COUNTING, ids, count)
    for _ in range(count - 1):
        step()
    assert step.tokens == decode(COUNTING, ids, count).tokens
