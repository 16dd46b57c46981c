"""A chain: all shards of a model wired into a stack, from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pytest_ane.families import Reference, Streams, Wire, entering, merge
from pytest_ane.sources import FloatArray

Run: TypeAlias = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Step:
    """One shard of a chain.

    Attributes:
        open: begins a sequence; what it returns maps the next positions `[T, C]` to `[T, C']`.
        sees: as `Layout.sees`; where it is `call`, a sequence has to be given at once.
        together: several whole sequences at once, where that is cheaper than one by one.
    """

    wire: Wire
    open: Callable[[], Run]
    sees: Literal["itself", "call", "state"] = "call"
    together: Reference | None = None

    def all(self, sequences: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs for whole sequences `[T, C]`, each from position 0."""
        if self.together is not None:
            return self.together(sequences)
        return [self.open()(sequence) for sequence in sequences]

    @property
    def shard(self) -> str:
        """Its shard's id."""
        return self.wire.shard

    @property
    def is_head(self) -> bool:
        """Whether it gives a slice of the logits."""
        return self.wire.mode == "append"


@dataclass(frozen=True)
class Chain:
    """Shards in running order.

    Attributes:
        embed: token ids to hidden states `[T, C]`.
    """

    embed: Callable[[Sequence[int]], FloatArray]
    steps: tuple[Step, ...]

    @property
    def blocks(self) -> tuple[Step, ...]:
        """All steps but the head's slices."""
        return tuple(step for step in self.steps if not step.is_head)

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Logits `[T, V]` for every position."""
        opened = Opened(self)
        return opened.head(opened.blocks(self.embed(ids)))

    def greedy(self, ids: Sequence[int], count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The `count` likeliest next tokens one by one, and each one's lead in logits.

        A chain with states is given one new token at a time, any other the whole text again. The
        lead is the best logit minus the second: a small one is a near tie.
        """
        goes_on = not any(step.sees == "call" for step in self.blocks)
        opened, fresh = Opened(self), list(ids)
        tokens: list[int] = []
        leads: list[float] = []
        for _ in range(count):
            streams = opened.blocks(self.embed(fresh))
            last = opened.head({name: rows[-1:] for name, rows in streams.items()})[0]
            second, best = np.partition(last, -2)[-2:]
            tokens.append(int(last.argmax()))
            leads.append(float(best - second))
            if goes_on:
                fresh = tokens[-1:]
            else:
                opened, fresh = Opened(self), [*ids, *tokens]
        return tuple(tokens), tuple(leads)


class Opened:
    """A chain at some point of one sequence."""

    def __init__(self, chain: Chain) -> None:
        self._steps = [(step, step.open()) for step in chain.steps]

    def blocks(self, hidden: FloatArray) -> Streams:
        """The streams after the last block, for the next positions' hidden states `[T, C]`."""
        streams: Streams = {"x": hidden}
        for step, run in self._steps:
            if not step.is_head:
                merge(streams, step.wire, run(entering(streams, step.wire)))
        return streams

    def head(self, streams: Streams) -> FloatArray:
        """Logits `[T, V]` of the streams after the last block."""
        streams = dict(streams)
        for step, run in self._steps:
            if step.is_head:
                merge(streams, step.wire, run(entering(streams, step.wire)))
        return streams["logits"]
