"""A chain of steps, and greedy decoding on a toy whose next token is known."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import (
    HOST,
    NO_TOKEN,
    Chain,
    ChainStep,
    Decoder,
    Decoding,
    ShardRun,
    Timer,
)
from pytest_ane.models.families import Wire
from tests.gates.behaviour.toys import toy

VOCABULARY = 7


def embed(ids: Sequence[int]) -> FloatArray:
    return np.eye(VOCABULARY, dtype=np.float32)[list(ids)]


def following(states: FloatArray) -> FloatArray:
    """Logit 3 for the token after, 1 for the one after that: the lead is 2."""
    return 3 * np.roll(states, 1, axis=1) + np.roll(states, 2, axis=1)


def identity(states: FloatArray) -> FloatArray:
    return states


def block(name: str, run: ShardRun) -> ChainStep:
    return ChainStep(Wire(name), lambda: run)


def head(name: str, run: ShardRun) -> ChainStep:
    return ChainStep(Wire(name, gives="logits", mode="append"), lambda: run, "itself")


def decode(
    chain: Chain, ids: Sequence[int], count: int, timer: Timer = time.perf_counter
) -> Decoding:
    decoding = Decoding(chain, ids, count, timer)
    for _ in range(count - 1):
        decoding()
    return decoding


COUNTING = Chain(embed, (block("L00", identity), head("head.0", following)))


def test_blocks_run_one_after_another() -> None:
    chain = Chain(embed, (block("L00", lambda x: x + 1), block("L01", lambda x: x * 10)))
    assert Decoder(chain, [0]).streams()["x"][0].tolist() == [20] + [10] * 6


def test_packs_are_added_up_and_combined() -> None:
    """Two packs share what enters, the last takes their sum beside the residual."""
    packs = (
        ChainStep(Wire("p0", gives="moe"), lambda: lambda x: 2 * x),
        ChainStep(Wire("p1", gives="moe", mode="add"), lambda: lambda x: 3 * x),
        ChainStep(Wire("p2", takes=("x", "moe")), lambda: lambda x: x[:, :7] + 10 * x[:, 7:]),
    )
    streams = Decoder(Chain(embed, (*packs, *packs)), [0]).streams()
    assert streams["x"][0].tolist() == [51 * 51] + [0] * 6


def test_head_slices_lie_side_by_side() -> None:
    heads = (head("head.0", lambda x: x[:, :2]), head("head.1", lambda x: x[:, 2:] * 5))
    assert Chain(embed, heads).logits([1, 2]).tolist() == [
        [0, 1, 0, 0, 0, 0, 0],
        [0, 0, 5, 0, 0, 0, 0],
    ]


def test_greedy_decoding_counts_on() -> None:
    assert COUNTING.answer([4], 4)[1:] == ((5, 6, 0, 1), (2.0, 2.0, 2.0, 2.0))
    assert COUNTING.answer([4], 0)[1:] == ((), ())
    assert decode(COUNTING, [4], 4).tokens == [5, 6, 0, 1]


def summed(states: FloatArray) -> FloatArray:
    """Of a head that asks for the sum of all tokens so far."""
    totals = (states * np.arange(VOCABULARY)).sum(axis=1).astype(int) % VOCABULARY
    return embed(totals.tolist())


def test_greedy_decoding_sees_the_whole_text() -> None:
    cumulative = block("L00", lambda x: np.cumsum(x, axis=0))
    assert Chain(embed, (cumulative, head("head.0", summed))).answer([1, 2], 3).tokens == (3, 6, 5)


def test_a_chain_with_states_is_given_each_token_once() -> None:
    """A block that keeps the sum of all it has seen, and what it was given."""
    given: list[int] = []

    def open_sequence() -> ShardRun:
        total = np.zeros(VOCABULARY, np.float32)

        def run(states: FloatArray) -> FloatArray:
            nonlocal total
            given.append(len(states))
            sums = total + np.cumsum(states, axis=0)
            total = sums[-1]
            return sums

        return run

    chain = Chain(embed, (ChainStep(Wire("L00"), open_sequence, "state"), head("head.0", summed)))
    assert chain.answer([1, 2], 3).tokens == (3, 6, 5)
    assert given == [2, 1, 1]


def test_of_equal_logits_the_first_is_taken_with_no_lead() -> None:
    even = Chain(embed, (head("head.0", lambda x: x * 0),))
    assert even.answer([4], 2)[1:] == ((0, 0), (0.0, 0.0))


def test_a_nan_logit_has_no_lead() -> None:
    broken = Chain(embed, (head("head.0", lambda x: x * np.nan),))
    _, leads = broken.answer([4], 1)[1:]
    assert math.isnan(leads[0])
    assert not leads[0] >= 0


def breaking(bad: float, state: bool) -> Chain:
    """`COUNTING`, whose fourth position and all after it have one bad value."""

    def open_sequence() -> ShardRun:
        start = 0

        def run(x: FloatArray) -> FloatArray:
            nonlocal start
            given = x.copy()
            given[max(3 - start, 0) :, 0] = bad
            start += len(x)
            return given

        return run

    first = ChainStep(Wire("L00"), open_sequence, "state" if state else "call")
    return Chain(embed, (first, head("head.0", following)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("guess", [(), (4, 5, 6, 0)])
def test_where_logits_are_not_finite_there_is_no_token(
    bad: float, state: bool, guess: tuple[int, ...]
) -> None:
    """`argmax` would say 0 of a NaN there, a token like any other."""
    _, tokens, leads = breaking(bad, state).answer([2, 3], 4, guess)
    assert tokens == (4, 5, NO_TOKEN, NO_TOKEN)
    assert leads[:2] == (2, 2)


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5), st.integers(0, 5))
def test_a_longer_continuation_begins_with_the_shorter_one(ids: list[int], count: int) -> None:
    tokens, leads = COUNTING.answer(ids, count + 1)[1:]
    assert (tokens[:count], leads[:count]) == COUNTING.answer(ids, count)[1:]
    assert all(lead == pytest.approx(2) for lead in leads)


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), st.integers(0, 6))
def test_a_guess_changes_nothing_but_the_work(guess: list[int], count: int) -> None:
    assert COUNTING.answer([4], count, guess)[1:] == COUNTING.answer([4], count)[1:]


@pytest.mark.parametrize(
    ("guess", "lengths"),
    [
        ((5, 6, 0, 1), [1, 4]),
        ((5, 6, 0), [1, 4]),
        ((5, 6, 3, 1), [1, 4, 4]),
        ((2, 6, 0, 1), [1, 2, 3, 4]),
        ((), [1, 2, 3, 4]),
    ],
)
def test_tokens_guessed_rightly_cost_one_run(guess: tuple[int, ...], lengths: list[int]) -> None:
    """The text, then as much of the guess as holds, then every further token."""
    given: list[int] = []
    chain = Chain(embed, (noted(given, sees="call"), head("head.0", following)))
    assert chain.answer([4], 4, guess).tokens == (5, 6, 0, 1)
    assert given == lengths


@pytest.mark.parametrize(
    ("sees", "answer", "count", "lengths"),
    [
        ("call", (5, 6), 3, [3]),
        ("call", (5, 6), 2, [3]),
        ("call", (5, 6), 4, [3, 4]),
        ("call", (2, 6), 4, [3, 2, 3, 4]),
        ("state", (5, 6), 4, [3, 1, 1, 1, 1]),
        ("state", (5, 6), 0, [3]),
    ],
)
def test_an_answer_that_is_there_tells_the_tokens_that_it_agrees_with(
    sees: str, answer: tuple[int, ...], count: int, lengths: list[int]
) -> None:
    """The text is 4 and an answer; the tokens continue the 4, and a chain with states begins anew.

    Without states prompt and answer are one run, and what is guessed beyond the answer another.
    """
    given: list[int] = []
    chain = Chain(embed, (noted(given, sees=sees), head("head.0", following)))
    ids = (4, *answer)
    found = chain.answer(ids, count, (*answer, 0, 1), own=1)
    assert found.tokens == (5, 6, 0, 1)[:count]
    assert given == lengths
    assert found.logits.tolist() == COUNTING.logits(ids).tolist()


def test_the_answer_has_the_text_s_own_logits() -> None:
    answer = COUNTING.answer([1, 2], 2, (3, 4))
    assert answer.logits.tolist() == COUNTING.logits([1, 2]).tolist()


def noted(given: list[int], kind: str = "block", sees: str = "state") -> ChainStep:
    """A block that notes how many positions it was given."""

    def run(hidden: FloatArray) -> FloatArray:
        given.append(len(hidden))
        return hidden

    return ChainStep(Wire("L00", kind=kind), lambda: run, sees)  # type: ignore[arg-type]


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


def test_the_profile_is_of_the_last_steps() -> None:
    step = Decoding(Chain(embed, (noted([]), head("head.0", following))), [1], 5)
    step.steps = [{"block": 9.0, HOST: 1.0}, {"block": 2.0, HOST: 0.5}, {"block": 4.0, HOST: 0.7}]
    assert step.profile(2) == {"block": 3.0, HOST: 0.6}


@settings(max_examples=15)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 6))
def test_the_same_tokens_as_at_once(ids: list[int], count: int) -> None:
    step = Decoding(COUNTING, ids, count)
    for number in range(1, count):
        step()
        assert (len(step.tokens), len(step.steps)) == (number + 1, number)
    assert step.tokens == decode(COUNTING, ids, count).tokens
