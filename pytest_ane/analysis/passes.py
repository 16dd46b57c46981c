"""Whole stacks on known texts: one pass, shard by shard, answers all that `measure` asks.

The texts are the golden prompts with the reference's own continuation. As long as the stack says
the same, that is also its greedy text; where it first differs is all that a verdict looks at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pytest_ane.chain.chain import Answer, Chain, ShardRun, lead, likeliest_token
from pytest_ane.chain.exact import run_all
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import Streams

_BUDGET = 256 << 20
"""Bytes of hidden states kept between passes."""
_Begin: TypeAlias = "tuple[Callable[[], ShardRun], ...]"
"""How the first shards of a stack are run."""


@dataclass(frozen=True, eq=False)
class Known(Chain):
    """A chain whose logits are known already.

    Attributes:
        rows: logits `[T', V]` by prompt, beyond its end those of the reference's continuation.
    """

    rows: Mapping[tuple[int, ...], FloatArray] = field(default_factory=dict)

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Logits `[T, V]` of a golden prompt."""
        return self.rows[tuple(ids)][: len(ids)]

    def answer(self, ids: Sequence[int], count: int, guess: Sequence[int] = ()) -> Answer:
        """As `Chain.answer` up to and including the first token that the reference does not say.

        Those after it follow the reference's text, not the chain's own.
        """
        rows = self.rows[tuple(ids)]
        ahead = rows[len(ids) - 1 :][:count]
        tokens = tuple(map(likeliest_token, ahead))
        return Answer(rows[: len(ids)], tokens, tuple(map(lead, ahead)))


class Passes:
    """Passes of stacks that differ in some shards; equal beginnings are run once.

    Args:
        golden: the texts.
        budget: bytes of hidden states that are kept, the latest used.
    """

    def __init__(self, golden: Sequence[GoldenPrompt], budget: int = _BUDGET) -> None:
        self._golden = golden
        self._budget = budget
        self._held = 0
        self._kept: OrderedDict[_Begin, list[Streams]] = OrderedDict()

    def run(self, chain: Chain) -> Known:
        """One pass; shards are the same as in an earlier one if their `Step` is."""
        steps = chain.blocks
        key = tuple(step.open for step in steps)
        done, streams = self._longest(key)
        if not done:
            streams = [{"x": chain.embed([*g.ids, *g.greedy[:-1]])} for g in self._golden]
        for i, step in enumerate(steps[done:], start=done + 1):
            streams = list(map(dict, streams))
            run_all(step, streams)
            self._keep(key[:i], streams)
        streams = list(map(dict, streams))
        for step in chain.steps:
            if step.is_head:
                run_all(step, streams)
        return Known(chain.embed, (), rows=self._rows([one["logits"] for one in streams]))

    def _rows(self, logits: list[FloatArray]) -> dict[tuple[int, ...], FloatArray]:
        """By prompt; of the same prompt twice, the longer continuation."""
        pairs = zip(self._golden, logits, strict=True)
        return {g.ids: rows for g, rows in sorted(pairs, key=lambda pair: len(pair[1]))}

    def _longest(self, key: _Begin) -> tuple[int, list[Streams]]:
        for length in range(len(key), 0, -1):
            if key[:length] in self._kept:
                self._kept.move_to_end(key[:length])
                return length, self._kept[key[:length]]
        return 0, []

    def _keep(self, key: _Begin, streams: list[Streams]) -> None:
        self._kept[key] = streams
        self._held += _bytes(streams)
        while self._held > self._budget:
            _, oldest = self._kept.popitem(last=False)
            self._held -= _bytes(oldest)


def _bytes(streams: list[Streams]) -> int:
    return sum(array.nbytes for one in streams for array in one.values())
