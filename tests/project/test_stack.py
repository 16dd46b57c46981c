"""A shard as a step of a chain: calls of what it can take, at the positions they begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Wire
from pytest_ane.project._package_chain import ShardSequence

VOCABULARY = 5


class Summing:
    """A runner whose state is the sum of all rows so far; a layout that hands over rows.

    Attributes:
        calls: start and length of every call.
    """

    width, sees = VOCABULARY, "state"

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def make_state(self) -> FloatArray:
        return np.zeros(VOCABULARY, np.float32)

    def predict(self, inputs: dict[str, FloatArray], state: FloatArray) -> dict[str, FloatArray]:
        sums = state + np.cumsum(inputs["x"], axis=0)
        state[:] = sums[-1]
        return {"y": sums}

    def inputs(self, hidden: FloatArray, start: int) -> dict[str, FloatArray]:
        self.calls.append((start, len(hidden)))
        return {"x": hidden}

    def output(self, outputs: dict[str, FloatArray]) -> FloatArray:
        return outputs["y"]


def step(shard: Any, limit: int) -> ChainStep:
    return ChainStep(Wire("L00"), lambda: ShardSequence(shard, shard, limit), shard.sees)


def embed(ids: Any) -> FloatArray:
    return np.eye(VOCABULARY, dtype=np.float32)[list(ids)]


def test_a_prompt_enters_in_calls_of_the_largest_t_and_each_new_token_alone() -> None:
    """As in production: prefill, then decode at T = 1, with the state that prefill has left."""
    shard = Summing()
    head = ChainStep(
        Wire("head.0", gives="logits", mode="append"), lambda: lambda x: np.roll(x, 1, 1), "itself"
    )
    answer = Chain(embed, (step(shard, 4), head)).answer([2, 2, 2, 2, 2, 0], 4)
    assert shard.calls == [(0, 4), (4, 2), (6, 1), (7, 1), (8, 1)]
    # Token 2 leads by far, so what follows it is said again and again, until it is level.
    assert answer.tokens == (3, 3, 3, 3)
    assert answer.leads == (4.0, 4.0, 3.0, 2.0)


@pytest.mark.parametrize("limit", [1, 2, 3, 64])
def test_the_calls_are_one_sequence(limit: int) -> None:
    rows = embed([0, 1, 2, 3, 4])
    found = step(Summing(), limit).open()(rows)
    assert found.tolist() == np.cumsum(rows, axis=0).tolist()
