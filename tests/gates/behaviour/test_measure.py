"""The measurement: golden prompts through a chain, and each block alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_ane.gates.behaviour import measure
from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.manifest.chain import Mode
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.chain import NO_TOKEN, Chain, ChainStep
from pytest_ane.models.families import Wire
from pytest_ane.probes.exact_chain import GoldenPrompt, forced
from pytest_ane.tools.drift import measure_drift
from tests.gates.behaviour.toys import embed as embed_toy
from tests.gates.behaviour.toys import golden, stack_of, states_of, toy
from tests.models.test_chain import COUNTING, VOCABULARY, block, embed, following, head, identity

IDS = (2, 3)
GOLDEN = GoldenPrompt("count", IDS, COUNTING.logits(IDS), (4, 5, 6), (2.0, 2.0, 2.0), "4 5 6")


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def states(prompt: str, shard: str) -> tuple[FloatArray, FloatArray]:
    """The reference's blocks pass everything on."""
    assert (prompt, shard[0]) == ("count", "L")
    return embed(IDS), embed(IDS)


def run(chain: Chain) -> tuple[PromptResult, tuple[tuple[str, float], ...]]:
    """The prompt, and the cosine of each shard alone."""
    behaviour = measure(chain, [GOLDEN], states, decode, {"backend": "toy"})
    assert behaviour.provenance == {"backend": "toy"}
    assert behaviour.vocabulary == VOCABULARY
    (prompt,) = behaviour.prompts
    return prompt, tuple((alone.shard, alone.cosine) for alone in behaviour.alone)


def test_the_reference_itself() -> None:
    prompt, alone = run(COUNTING)
    assert [(p.centred_cosine, p.kl, p.top1, p.rank) for p in prompt.positions] == [
        (pytest.approx(1), 0.0, True, 0)
    ] * 2
    assert (prompt.greedy, prompt.agreed) == ((4, 5, 6), 3)
    assert (prompt.text, prompt.expected_text) == ("4 5 6", "4 5 6")
    assert [p.tokens[0] for p in prompt.likeliest] == [3, 4]
    assert alone == (("L00", pytest.approx(1)), ("head.0", pytest.approx(1)))
    assert (prompt.head.top1, prompt.head.kl) == (1.0, 0.0)
    assert prompt.head.centred_cosine == pytest.approx(1)


def test_a_chain_that_goes_astray() -> None:
    """Each step back by one token: after 3 comes 3, and so on."""
    back = Chain(embed, (block("L00", lambda x: np.roll(x, -1, axis=1)), head("head.0", following)))
    prompt, alone = run(back)
    assert (prompt.greedy, prompt.agreed, prompt.text) == ((3, 3, 3), 0, "3 3 3")
    assert not any(p.top1 for p in prompt.positions)
    assert alone == (("L00", pytest.approx(0)), ("head.0", pytest.approx(1)))
    assert (prompt.head.top1, prompt.head.kl) == (1.0, 0.0)
    assert prompt.head.centred_cosine == pytest.approx(1)
    assert [p.kl > 0.1 for p in prompt.positions] == [True, True]


def test_a_head_that_goes_astray() -> None:
    """Its own error is all there is; of two slices the second is the wrong one."""
    slices = (
        head("head.0", lambda x: following(x)[:, :4]),
        head("head.1", lambda x: -following(x)[:, 4:]),
    )
    prompt, alone = run(Chain(embed, (block("L00", identity), *slices)))
    assert alone == (("L00", pytest.approx(1)), ("head.0", pytest.approx(1)), ("head.1", -1.0))
    assert prompt.head.kl == pytest.approx(prompt.positions[1].kl)
    assert prompt.head.kl > 0.1


def test_one_nan_of_a_block_is_its_lowest_cosine() -> None:
    def broken(x: FloatArray) -> FloatArray:
        y = x.copy()
        y[0, 0] = np.nan
        return y

    chain = Chain(embed, (block("L00", identity), block("L01", broken), head("head.0", following)))
    prompt, alone = run(chain)
    assert alone[0] == ("L00", pytest.approx(1))
    assert math.isnan(alone[1][1])
    assert math.isnan(prompt.positions[0].kl)


def only(*live: int, gives: float = 1.0, mode: Mode = "add") -> Chain:
    """A shard that gives nothing but at some positions."""

    def pack(x: FloatArray) -> FloatArray:
        out = np.zeros_like(x)
        out[list(live)] = gives
        return out

    pack_of = ChainStep(Wire("L00", mode=mode), lambda: pack)
    return Chain(embed, (pack_of, head("head.0", following)))


def alone(chain: Chain, expected: FloatArray) -> tuple[tuple[str, float], ...]:
    shards, _ = forced(chain, [GOLDEN], lambda *_: (embed(IDS), expected))
    return tuple((alone.shard, alone.cosine) for alone in shards if alone.shard == "L00")


def test_zero_on_both_sides_is_agreement_and_no_evidence() -> None:
    """A pack of experts none of which was chosen, at one position and at all."""
    ones, zeros = np.ones_like(embed(IDS)), np.zeros_like(embed(IDS))
    half = ones * np.array([[0.0], [1.0]], dtype=np.float32)
    assert alone(only(1), half) == (("L00", pytest.approx(1)),)
    assert alone(only(), zeros) == ()
    ((_, value),) = alone(only(0, 1, gives=math.nan), np.zeros_like(embed(IDS)))
    assert math.isnan(value)


def test_nothing_at_one_position_is_no_dead_shard_and_nothing_at_all_is_one() -> None:
    """Rounding may choose another pack's expert at a position of a near tie.

    What gives the residual path itself, or logits, is never zero there
    (tests/plugin/test_families.py has such a head).
    """
    ones = np.ones_like(embed(IDS))
    assert alone(only(1), ones) == (("L00", 0.0),)
    for dead in (only(), only(1, mode="set")):
        ((_, value),) = alone(dead, ones)
        assert math.isnan(value)


def test_a_nan_in_greedy_text_ends_it() -> None:
    """Of a NaN `argmax` makes token 0, which is what the reference says there."""

    def late(x: FloatArray) -> FloatArray:
        given = x.copy()
        given[3:] = np.nan
        return given

    ids = (4, 5)
    prompt = GoldenPrompt("count", ids, COUNTING.logits(ids), (6, 0, 0), (2.0, 2.0, 0.0), "6 0 0")
    chain = Chain(embed, (block("L00", late), head("head.0", following)))
    (found,) = measure(chain, [prompt], lambda *_: (embed(ids), embed(ids)), decode, {}).prompts
    assert all(p.defined for p in found.positions)
    assert (found.greedy, found.agreed, found.text) == ((6, 0, NO_TOKEN), 2, "6 0")


def test_every_token_of_a_prompt_has_its_text() -> None:
    """A tokenizer that writes a space between words, and U+FFFD for a part of a character."""
    words = {2: "a", 3: "b", 4: b"\xc3", 5: b"\xa9"}

    def spell(ids: Sequence[int]) -> str:
        text = b"".join(w if isinstance(w := words[i], bytes) else f" {w}".encode() for i in ids)
        return text.decode(errors="replace").removeprefix(" ")

    ids = (2, 3, 4, 5)
    prompt = replace(GOLDEN, ids=ids, logits=COUNTING.logits(ids), greedy=(), leads=())
    (found,) = measure(COUNTING, [prompt], None, spell, {}).prompts
    assert found.pieces == ("a", " b", "\ufffd", "\ufffd")
    prompt, _ = run(COUNTING)
    assert prompt.pieces == ("2", " 3")
    with pytest.raises(ValueError, match="1 of 2 positions have texts"):
        replace(prompt, pieces=("2",))


def test_states_of_the_stack_accumulate_the_error_of_its_shards() -> None:
    """They are those of `pytest-ane drift`, had while the prompts are answered."""
    exact, chain = toy(5), toy(5, base=0.4)
    prompts = golden(exact)
    states = states_of(exact, prompts)
    drift = measure(chain, prompts, states, str, {}).drift
    assert [state.shard for state in drift] == [step.shard for step in chain.blocks]
    shards = measure_drift(stack_of(chain, exact, prompts, states)).shards
    for state, shard in zip(drift, shards, strict=False):
        assert state.error == pytest.approx(shard.stack.rest.relative_l2)
        assert state.cosine == pytest.approx(shard.stack.rest.cosine)
    assert drift[-1].error > drift[0].error > 0
    assert measure(chain, prompts, None, str, {}).drift == ()


def test_states_that_are_undefined_or_none_have_no_cosine() -> None:
    broken = replace(toy(2), embed=lambda ids: embed_toy(ids) * np.float32(math.nan))
    prompts = golden(toy(2))
    drift = measure(broken, prompts, states_of(toy(2), prompts), str, {}).drift
    assert all(math.isnan(state.error) for state in drift)
    assert all(state.cosine is not None and math.isnan(state.cosine) for state in drift)
    # A pack of experts of which none was chosen: zeros on both sides.
    zeros = Chain(embed, (block("L00", lambda x: 0 * x), head("head.0", following)))
    nothing = np.zeros_like(embed(IDS))
    (state,) = measure(zeros, [GOLDEN], lambda *_: (nothing, nothing), decode, {}).drift
    assert (state.error, state.cosine) == (0.0, None)


def test_the_positions_of_an_answer_are_judged_and_count_for_no_perplexity() -> None:
    """The reference counts 2, 3 and answers 4, 5; a chain that goes astray is seen there too."""
    ids = (2, 3, 4, 5)
    prompt = replace(GOLDEN, ids=ids, logits=COUNTING.logits(ids), answered=2)
    for chain, top1, greedy in (
        (COUNTING, [True] * 4, (4, 5, 6)),
        (Chain(embed, (head("head.0", lambda x: x),)), [False] * 4, (3, 3, 3)),
    ):
        behaviour = measure(chain, [prompt], None, decode, {})
        (result,) = behaviour.prompts
        assert [p.top1 for p in result.positions] == top1
        assert [p.reference_nll is None for p in result.positions] == [False, True, True, True]
        assert [p.nll is None for p in result.positions] == [False, True, True, True]
        assert (result.greedy, result.expected) == (greedy, (4, 5, 6))
        assert len(result.pieces) == len(ids)
