"""Golden prompts, and chains with some shards exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_ane.make import Cache
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.chain import Chain, ChainStep, Decoder, Residual, ShardRun
from pytest_ane.models.families import Wire
from pytest_ane.probes.exact_chain import (
    GoldenPrompt,
    ShardAlone,
    exact_chain,
    forced,
    record_golden,
    reference_chain,
)
from pytest_ane.probes.recording import TokenPrompt, record_hidden
from tests.gates.behaviour.toys import toy
from tests.models.test_chain import COUNTING, block, embed, head

WIRING = (Wire("L00"), Wire("head.0", gives="logits", mode="append"))


def broken_from(first: int) -> Any:
    """A model whose states are NaN from a position on."""

    def run(rows: Any) -> Any:
        return [np.where(np.arange(len(x))[:, None] < first, x, np.nan) for x in rows]

    return SimpleNamespace(
        embed=lambda ids: np.eye(4, dtype=np.float32)[list(ids)],
        reference=lambda shard: run if shard == "L00" else lambda rows: rows,
    )


@pytest.mark.parametrize(("first", "where"), [(1, "golden prompt 'p'"), (2, "the text after 'p'")])
def test_a_reference_that_is_not_finite_is_none(tmp_path: Path, first: int, where: str) -> None:
    with pytest.raises(SourceError) as error:
        record_golden(
            Cache(tmp_path), {}, lambda: [(TokenPrompt("p", (1, 2)), 3, 0)], [], WIRING,
            lambda: reference_chain(broken_from(first), WIRING), str,
        )  # fmt: skip
    assert str(error.value) == (
        f"The float32 reference of the whole model is NaN or infinite for {where}, so nothing can "
        "be compared with it; repair the source of its weights."
    )


@pytest.mark.parametrize(
    ("ends", "answer"),
    [((), (4, 5, 6, 0, 1)), ((6,), (4, 5)), ((9, 4), ()), ((1,), (4, 5, 6, 0))],
)
def test_the_reference_s_own_answer_is_recorded_up_to_its_end(
    tmp_path: Path, ends: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    """Two greedy tokens and an answer of five at most; without an answer all is as it was."""
    asked: list[str] = []

    def reference() -> Chain:
        asked.append("reference")
        return COUNTING

    def record() -> list[GoldenPrompt]:
        prompts = [(TokenPrompt("p", (2, 3)), 2, 5), (TokenPrompt("q", (1,)), 2, 0)]
        return record_golden(
            Cache(tmp_path), {}, lambda: prompts, [], WIRING, reference, str, lambda: ends
        )

    for golden, other in (record(), record()):
        assert (golden.ids, golden.prompt, golden.answered) == (
            (2, 3, *answer),
            (2, 3),
            len(answer),
        )
        assert golden.greedy == (4, 5)
        assert golden.continuation == max(answer, (4, 5), key=len)
        np.testing.assert_array_equal(golden.logits, COUNTING.logits(golden.ids))
        assert (other.ids, other.answered, other.continuation) == ((1,), 0, (2, 3))
    assert asked == ["reference"]


def test_an_answer_that_is_not_finite_is_none(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="NaN or infinite for the text after 'p'"):
        record_golden(
            Cache(tmp_path), {}, lambda: [(TokenPrompt("p", (1, 2)), 1, 3)], [], WIRING,
            lambda: reference_chain(broken_from(2), WIRING), str,
        )  # fmt: skip


def test_hidden_states_that_are_not_finite_are_no_reference(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="reference of L00 is NaN or infinite for golden prompt"):
        record_hidden(
            Cache(tmp_path), {}, lambda: [TokenPrompt("p", (1, 2))], [], WIRING,
            lambda: broken_from(1),
        )  # fmt: skip


EXACT, OFF = toy(4), toy(4, base=0.5)
IDS = [1, 5, 3]


@pytest.mark.parametrize("names", [(), ("L02",), ("L00", "head.1"), ("L03", "L01", "head.0")])
def test_exact_shards_are_the_references(names: tuple[str, ...]) -> None:
    mixed = exact_chain(OFF, EXACT, names)
    kept = {f"L{i:02d}" for i in range(4)} | {"head.0", "head.1"}
    same = toy(4, {name: 0.5 for name in kept - set(names)})
    np.testing.assert_array_equal(mixed.logits(IDS), same.logits(IDS))
    assert mixed.answer(IDS, 3)[1:] == same.answer(IDS, 3)[1:]


def test_an_unknown_shard_and_chains_of_other_wires_are_refused() -> None:
    with pytest.raises(ValueError, match="no shard L77"):
        exact_chain(OFF, EXACT, ["L77"])
    with pytest.raises(ValueError, match="wired differently"):
        exact_chain(OFF, toy(3), [])


def summing() -> ChainStep:
    """A block with a state: the sum of all positions so far."""

    def open_sequence() -> ShardRun:
        total = np.zeros(7, np.float32)

        def run(x: FloatArray) -> FloatArray:
            nonlocal total
            sums = total + np.cumsum(x, axis=0)
            total = sums[-1]
            return sums.astype(np.float32)

        return run

    return ChainStep(Wire("L01"), open_sequence, "state")


def test_an_exact_shard_among_stateful_ones_sees_the_whole_text() -> None:
    """A reference keeps no state, so greedy text is run anew from the start for each token."""
    whole = block("L00", lambda x: np.cumsum(x, axis=0).astype(np.float32))
    chain = Chain(
        embed, (ChainStep(Wire("L00"), summing().open, "state"), summing(), COUNTING.steps[1])
    )
    reference = Chain(embed, (whole, block("L01", whole.open()), COUNTING.steps[1]))
    mixed = exact_chain(chain, reference, ["L00"])
    assert [step.sees for step in mixed.blocks] == ["call", "state"]
    assert (
        mixed.answer([1, 2], 3)[1:]
        == chain.answer([1, 2], 3)[1:]
        == reference.answer([1, 2], 3)[1:]
    )


def test_packs_that_add_and_heads_that_append_keep_their_wires() -> None:
    def packs(scale: float) -> Chain:
        return Chain(
            embed,
            (
                ChainStep(Wire("p0", gives="moe"), lambda: lambda x: 2 * scale * x),
                ChainStep(Wire("p1", gives="moe", mode="add"), lambda: lambda x: 3 * scale * x),
                ChainStep(Wire("p2", takes=("x", "moe")), lambda: lambda x: x[:, :7] + x[:, 7:]),
                head("head.0", lambda x: x[:, :2]),
                head("head.1", lambda x: 10 * scale * x[:, 2:]),
            ),
        )

    mixed = exact_chain(packs(1), packs(0), ["p1", "head.1"])
    assert Decoder(mixed, [0]).streams()["x"][0].tolist() == [3, *[0] * 6]
    assert mixed.logits([0])[0].tolist() == [3, *[0] * 6]
    assert exact_chain(packs(1), packs(0), []).logits([3])[0].tolist() == [0, 0, 0, 60, 0, 0, 0]


def alone(residual: Residual, *prompts: Sequence[int], first: float = 1.0) -> ShardAlone:
    """A block that adds 2 to ten times what enters, where the reference adds 1; `first` at 0."""

    def exact(prompt: str, shard: str) -> tuple[FloatArray, FloatArray]:
        x = embed(prompts[int(prompt)])
        return x, 10 * x + 1

    def wrong(x: FloatArray) -> FloatArray:
        added = np.full_like(x, 2)
        added[0] = 1 + first
        return 10 * x + added

    step = ChainStep(Wire("L00"), lambda: wrong, residual=residual)
    recorded = [
        GoldenPrompt(str(i), tuple(ids), np.zeros((len(ids), 7), np.float32), (), (), "")
        for i, ids in enumerate(prompts)
    ]
    (shard,), _ = forced(Chain(embed, (step,)), recorded, exact)
    return shard


def path(hidden: Sequence[FloatArray]) -> list[FloatArray]:
    return [10 * x for x in hidden]


def test_the_error_of_a_shard_alone_is_that_of_what_it_adds() -> None:
    """It adds twice what is right: in its own size that is all of it, in the output's it is not."""
    assert alone(path, [1, 2, 3]).error == pytest.approx(1)
    assert alone(lambda hidden: None, [1, 2, 3]).error == pytest.approx((7 / (6 + 11**2)) ** 0.5)


def test_position_0_does_not_count_where_there_are_others() -> None:
    assert alone(path, [1, 2, 3], [4], first=50.0).error == pytest.approx(1)
    assert alone(path, [4], first=50.0).error == pytest.approx(50)


def test_the_error_of_nan_is_nan_and_of_what_should_add_nothing_infinite() -> None:
    assert alone(path, [1, 2], [3], first=np.nan).error == pytest.approx(1)
    assert np.isnan(alone(path, [1], first=np.nan).error)
    assert alone(lambda hidden: [10 * x + 1 for x in hidden], [1, 2]).error == np.inf
