"""A chain: all shards of a model in running order, from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ane.families import concatenate
from pytest_ane.sources import FloatArray

Step = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Chain:
    """Blocks one after another, then head slices side by side; stateless.

    Attributes:
        embed: token ids to hidden states `[T, C]`.
        blocks: `(shard id, step)`; a step maps `[T, C]` to `[T, C]`.
        heads: `(shard id, step)`; a step maps `[T, C]` to `[T, V / slices]`.
    """

    embed: Callable[[Sequence[int]], FloatArray]
    blocks: tuple[tuple[str, Step], ...]
    heads: tuple[tuple[str, Step], ...]

    def hidden(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states `[T, C]` after the last block."""
        states = self.embed(ids)
        for _, step in self.blocks:
            states = step(states)
        return states

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Logits `[T, V]` for every position."""
        return self.head(self.hidden(ids))

    def head(self, states: FloatArray) -> FloatArray:
        """Logits `[T, V]` of hidden states after the last block."""
        return concatenate([step(states) for _, step in self.heads])

    def greedy(self, ids: Sequence[int], count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The `count` likeliest next tokens one by one, and each one's lead in logits.

        The lead is the best logit minus the second: a small one is a near tie.
        """
        tokens: list[int] = []
        leads: list[float] = []
        for _ in range(count):
            last = self.head(self.hidden([*ids, *tokens])[-1:])[0]
            second, best = np.partition(last, -2)[-2:]
            tokens.append(int(last.argmax()))
            leads.append(float(best - second))
        return tuple(tokens), tuple(leads)
