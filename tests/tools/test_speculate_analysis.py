"""Speculative decoding gives the tokens of plain decoding, whatever the drafts; when it pays."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import Chain, ChainStep, decode
from pytest_ane.models.families import Wire
from pytest_ane.tools._speculate import (
    BreakEven,
    Drafter,
    Speculated,
    Trial,
    expected_tokens,
    lookup,
    run_trial,
    speculate,
    time_calls,
    yield_of,
)
from pytest_ane.tools.speculate import break_even, lines
from tests.models.test_chain import COUNTING, embed, following, head
from tests.tools.toys import VOCABULARY, Call, chaotic

COUNTED = Chain(embed, (head("head.0", following),))
PROMPT = (1, 4, 0, 2, 3, 3, 1, 0)


def knowing(text: Sequence[int], right: Sequence[int | None]) -> Drafter:
    """Drafts of a known text: of each in turn the first so many are right, None: no draft."""
    turns = iter(right)

    def draft(ids: Sequence[int], count: int) -> list[int]:
        good = next(turns, 0)
        if good is None:
            return []
        ahead = [*text[len(ids) : len(ids) + count], *[0] * count][:count]
        return [t if i < good else (t + 1) % VOCABULARY for i, t in enumerate(ahead)]

    return draft


def counting(ids: Sequence[int], count: int) -> list[int]:
    """What `COUNTED` says, four times out of five."""
    return [(ids[-1] + 1 + i + (ids[-1] == 4)) % 7 for i in range(count)]


def check_sum(found: Speculated) -> None:
    assert len(found.tokens) - 1 == len(found.calls) + found.accepted + len(found.steps)
    assert 0 <= found.accepted <= found.drafted


@pytest.mark.parametrize(
    ("count", "right", "positions", "expected", "counted"),
    [
        (9, [3, 3], None, [(0, 8), (8, 4), (12, 4)], (2, 6, 6, 0)),
        (8, [0, 2, None, 1], None, [(0, 8), (8, 4), (9, 4), (12, 1), (13, 4)], (3, 9, 3, 1)),
        (3, [3], None, [(0, 8), (8, 4)], (1, 3, 1, 0)),
        (4, [0, 1, 1], 11, [(0, 8), (8, 3), (9, 2)], (2, 3, 1, 0)),
    ],
    ids=["right", "wrong: goes on behind", "no more than asked for", "narrower near the end"],
)
def test_calls_and_counters(
    count: int,
    right: list[int | None],
    positions: int | None,
    expected: list[Call],
    counted: tuple[int, ...],
) -> None:
    calls: list[Call] = []
    text = [*PROMPT, *decode(chaotic(), PROMPT, 20).tokens]
    chain, drafts = chaotic(calls=calls, positions=positions), knowing(text, right)
    found = speculate(chain, PROMPT, count, 4, draft=drafts, margin=0)
    assert found.tokens == text[8:][:count]
    assert calls == expected
    assert (len(found.calls), found.drafted, found.accepted, len(found.steps)) == counted
    assert found.acceptance == found.accepted / found.drafted


def test_a_near_tie_is_decided_by_plain_steps() -> None:
    """`COUNTED` leads by 2: at a margin above that every token is one."""
    found = speculate(COUNTED, [4], 4, 3, draft=counting, margin=2.5)
    assert found.tokens == [5, 6, 0, 1]
    assert (len(found.calls), found.accepted, len(found.replays)) == (3, 0, 3)
    assert not speculate(COUNTED, [4], 4, 3, draft=counting, margin=2).replays


def test_plain_steps_are_not_run_again() -> None:
    """Without a call with drafts before it, a step is plain, however near the tie."""
    found = speculate(COUNTED, [4], 6, 3, draft=lambda *_: (), margin=9)
    assert (found.tokens, len(found.steps), found.replays) == ([5, 6, 0, 1, 2, 3], 5, [])


def test_only_what_no_plain_step_has_led_to_is_run_again() -> None:
    calls: list[Call] = []
    text = [*PROMPT, *decode(chaotic(), PROMPT, 9).tokens]
    drafts = knowing(text, [None, 3, None, None])
    found = speculate(chaotic(calls=calls), PROMPT, 5, 4, draft=drafts, margin=9)
    assert found.tokens == text[8:13]
    # One plain step; a call whose first row is a near tie, run again; then plain steps.
    assert calls == [(0, 8), (8, 1), (9, 4), (9, 1), (10, 1), (11, 1)]
    check_sum(found)


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 6),
    st.lists(st.one_of(st.none(), st.integers(0, 6)), max_size=12),
    st.integers(1, 16),
)
def test_whatever_the_drafts_the_tokens_are_those_of_plain_decoding(
    seed: int, width: int, right: list[int | None], count: int
) -> None:
    """With wide calls off by up to half a margin in every logit, and level logits all the time."""
    prompt = random.Random(seed).choices(range(VOCABULARY), k=8)
    plain = decode(chaotic(seed), prompt, count).tokens
    drafts = knowing([*prompt, *plain], right)
    chain = chaotic(seed, off=0.1, positions=8 + count - 1)
    found = speculate(chain, prompt, count, width, draft=drafts, margin=0.2)
    assert found.tokens == plain
    check_sum(found)


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.data())
def test_drafts_of_any_length_and_kind(seed: int, width: int, data: st.DataObject) -> None:
    def draft(ids: Sequence[int], count: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=count + 2))

    plain = decode(chaotic(seed), PROMPT, 10).tokens
    found = speculate(chaotic(seed, off=0.1), PROMPT, 10, width, draft=draft, margin=0.2)
    assert found.tokens == plain
    check_sum(found)


def test_without_the_margin_rounding_shows() -> None:
    """So that the properties above would fail if near ties were not decided anew."""

    def differs(seed: int) -> bool:
        plain = decode(chaotic(seed), PROMPT, 12).tokens
        drafts = knowing([*PROMPT, *plain], [3] * 12)
        found = speculate(chaotic(seed, off=0.1), PROMPT, 12, 4, draft=drafts, margin=0)
        return found.tokens != plain

    assert any(map(differs, range(10)))


def test_a_chain_without_states_and_a_shard_that_cannot_go_back() -> None:
    with pytest.raises(ExecutionError, match="Shards without states"):
        run_trial(COUNTING, [1], 3, 4)
    steps = (ChainStep(Wire("L07"), lambda: lambda x: x, "state"), head("head.0", following))
    with pytest.raises(ExecutionError, match="L07 cannot go back in a sequence"):
        speculate(Chain(embed, steps), [4], 4, 2, draft=counting)


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ("the cat, the", " cat"),
        ("ab1 ab2 ab", "2 ab"),
        ("xab1 yab2 xab", "1 ya"),
        ("no repeat", ""),
        ("aaa", "aaaa"),
        ("01010", "1010"),
        ("a", ""),
        ("", ""),
    ],
)
def test_lookup(text: str, drafts: str) -> None:
    """The latest place counts, of the longest end that has one; a short period goes on."""
    assert "".join(map(chr, lookup([*map(ord, text)], 4))) == drafts


def test_how_much_must_be_alike() -> None:
    text = [1, 2, 9, 2]
    assert lookup(text, 2) == []
    assert lookup(text, 2, shortest=1) == [9, 2]


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 24))
def test_the_yield_of_a_known_text_is_that_of_decoding_it(
    seed: int, width: int, count: int
) -> None:
    text = decode(chaotic(seed), PROMPT, count).tokens
    found = speculate(chaotic(seed), PROMPT, count, width, margin=0)
    known = yield_of(PROMPT, text, width, lookup)
    assert known.calls == len(found.calls)
    assert (known.tokens_per_call - 1) * known.calls == pytest.approx(found.accepted)


def test_calls_of_a_text_over_and_over() -> None:
    calls: list[Call] = []
    seconds = time_calls(chaotic(calls=calls, positions=10), [1, 2, 3], 4, 5)
    assert calls == [(0, 4), (4, 4), (0, 4), (4, 4), (0, 4), (4, 4)]
    assert len(seconds) == 5
    assert min(seconds) > 0


TOKENS, STEPS = (1, 2, 3, 4), (0.1, 0.1, 0.4)


def test_one_prompt_both_ways() -> None:
    calls: list[Call] = []
    trial = run_trial(chaotic(calls=calls), [1, 2, 1, 2], 6, 3, 0.0)
    assert trial.differs is None
    assert len(trial.steps) == 5
    assert calls[:6] == [(0, 4), *((4 + i, 1) for i in range(5))]
    assert calls[6:15] == [(3 * i, 3) for i in range(9)]
    assert trial.tok_s == 5 / trial.speculated.seconds


def test_all_three_are_timed_by_the_clock_that_is_given() -> None:
    """One that goes on by a second whenever it is read: once around a call, more around shards."""
    ticks = iter(range(10**6))
    trial = run_trial(chaotic(), [1, 2, 1, 2], 6, 3, timer=lambda: float(next(ticks)))
    assert set(trial.steps) == {7.0}
    assert set(trial.calls) == {1.0}
    spent = [*trial.speculated.calls, *trial.speculated.steps, *trial.speculated.replays]
    assert all(1 <= seconds == int(seconds) for seconds in spent)


def test_speed_and_prediction() -> None:
    """Two calls of 0.2 s, one accepted draft: 3 tokens in 0.4 s; a median step takes 0.1 s."""
    spent = Speculated([1, 2, 3, 4], calls=[0.2, 0.2], drafted=6, accepted=1)
    trial = Trial(TOKENS, STEPS, (0.2, 0.2, 0.9), spent, 4)
    assert (trial.cost.t1, trial.cost.tv) == pytest.approx((0.1, 0.2))
    assert trial.tok_s == pytest.approx(7.5)
    assert trial.predicted == pytest.approx(7.5)
    assert trial.speedup == pytest.approx(0.75)
    assert Trial(TOKENS, STEPS, (0.2,), Speculated([1, 2, 9, 4], calls=[1.0]), 4).differs == 2


WIDTHS = st.integers(2, 12)
TIMES = st.floats(1e-4, 10)


def speedup(cost: BreakEven, a: float) -> float:
    """Speed against plain steps at independent acceptance `a`."""
    return expected_tokens(a, cost.width) / cost.tokens_needed


def test_the_notes_verifier_cannot_pay() -> None:
    """109 ms a step, 483 ms a call of width 4: the notes' formula said an acceptance of 0.10."""
    found = BreakEven(0.109, 0.483, 4)
    assert (found.share_needed, found.acceptance_needed) == (None, None)
    # What they ran: 32 calls of 96 drafts, of which 7 were accepted, in 15.455 s.
    assert found.tok_s(32, 7, 0) == pytest.approx(2.52, abs=0.01)


def test_steps_without_a_draft_cost_a_step() -> None:
    found = BreakEven(0.1, 0.2, 4)
    assert found.tok_s(calls=10, accepted=20, steps=10) == pytest.approx(40 / 3)
    assert found.tok_s(calls=10, accepted=20, steps=10, again=10) == pytest.approx(10)
    assert found.tok_s(calls=0, accepted=0, steps=5) == pytest.approx(10)


@given(st.floats(0, 0.999), WIDTHS)
def test_the_sum_is_the_closed_form(a: float, width: int) -> None:
    assert expected_tokens(a, width) == pytest.approx((1 - a**width) / (1 - a))


@given(TIMES, TIMES, WIDTHS)
def test_what_is_needed_is_where_the_speed_is_the_same(t1: float, tv: float, width: int) -> None:
    found = BreakEven(t1, tv, width)
    assert (found.share_needed is not None) == (speedup(found, 1) >= 1)
    if found.acceptance_needed is not None and found.share_needed is not None and tv >= t1:
        assert speedup(found, found.acceptance_needed) == pytest.approx(1)
        accepted = found.share_needed * (width - 1)
        assert (1 + accepted) / tv == pytest.approx(1 / t1)


@pytest.mark.parametrize(
    ("tv", "says"),
    [
        (0.483, "4.43 tokens, more than its width 4: unreachable, at best 0.90x"),
        (0.300, "2.75 tokens: 58.4% of all drafts accepted, or each with probability 0.75 if "
         "independent; at best 1.45x, all accepted"),
    ],
)  # fmt: skip
def test_the_break_even(tv: float, says: str) -> None:
    assert break_even(BreakEven(0.109, tv, 4)) == f"break-even: a call must yield {says}"


def test_the_notes_counters() -> None:
    counted = Speculated([0] * 40, calls=[0.483] * 32, drafted=96, accepted=7)
    plain, _, *others = lines(Trial((0,) * 4, (0.109,) * 3, (0.483,), counted, 4))
    assert [plain, *others] == [
        "plain: 109 ms a token, 9.17 tok/s (median of 3 steps) · verifier of width 4: 483 ms a "
        "call (median of 1 calls)",
        "verifier_calls=32 drafted=96 accepted=7 fallbacks=0 acceptance=7.3% replayed=0",
        "speculative: 483 ms a call, 2.52 tok/s, 0.28x plain; predicted 2.52 tok/s (+0.0%)",
    ]


def test_a_text_without_drafts_and_a_near_tie() -> None:
    counted = Speculated([0] * 5, steps=[0.1] * 4, replays=[0.1] * 4)
    *_, counters, outcome = lines(Trial((0,) * 4, (0.1,) * 3, (0.2,), counted, 4))
    assert counters.endswith("fallbacks=4 acceptance=none replayed=4")
    assert outcome == "speculative: 5.00 tok/s, 0.50x plain; predicted 5.00 tok/s (+0.0%)"
