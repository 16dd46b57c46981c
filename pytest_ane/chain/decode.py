"""Greedy decoding through a chain, with the time that every step takes by part."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from pytest_ane.chain.chain import Chain, ChainStep, Opened, ShardRun, last
from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import ExecutionError

Timer: TypeAlias = Callable[[], float]
"""A clock of seconds: the wall's, or `time.process_time`, which other processes hardly disturb."""
HOST = "host"
"""The part of a step that is no shard's: embedding, streams, the likeliest token."""


@dataclass(frozen=True)
class Decoded:
    """A greedy continuation.

    Attributes:
        tokens: the continuation; the first comes from the prompt's own last position.
        steps: for each further token seconds by part, kinds of shards and `host`: their sum is
            the step's wall time.
        prefill: seconds from the prompt to the first token.
    """

    tokens: tuple[int, ...]
    steps: tuple[dict[str, float], ...]
    prefill: float

    @property
    def seconds(self) -> tuple[float, ...]:
        """Wall time of every step."""
        return tuple(sum(step.values()) for step in self.steps)


@dataclass
class Clock:
    """Adds up where time goes.

    Attributes:
        timer: what seconds are, wall time unless said otherwise.
        spent: seconds since the last lap by part.
    """

    timer: Timer = time.perf_counter
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def lap(self) -> Iterator[dict[str, float]]:
        """Fills what it yields with the seconds of its body by part, what no shard took as host."""
        self.spent.clear()
        parts: dict[str, float] = {}
        start = self.timer()
        yield parts
        whole = self.timer() - start
        parts |= self.spent
        parts[HOST] = whole - sum(self.spent.values())

    def timed(self, chain: Chain) -> Chain:
        """The chain, with every call of a shard counted under its kind."""
        return replace(chain, steps=tuple(map(self._timed, chain.steps)))

    def _timed(self, step: ChainStep) -> ChainStep:
        def open_sequence() -> ShardRun:
            run = step.open()

            def timed(hidden: FloatArray) -> FloatArray:
                start = self.timer()
                result = run(hidden)
                self.spent[step.wire.kind] += self.timer() - start
                return result

            return timed

        return replace(step, open=open_sequence)


class Stepper:
    """Continues a text by the likeliest token, one at every call.

    Args:
        chain: with states, each call computes one position; without, the whole text again.
        ids: the prompt, which is computed here.
        count: tokens that it is to be continued by, the one after the prompt included.
        timer: what the parts' seconds are.

    Attributes:
        tokens: the continuation so far.
        prefill: seconds from the prompt to the first token.
        steps: seconds by part, as `Decoded.steps` has them, one entry a call.

    Raises:
        ExecutionError: prompt and tokens do not fit the chain, or a logit is not finite.
    """

    def __init__(
        self,
        chain: Chain,
        ids: Sequence[int],
        count: int,
        timer: Timer = time.perf_counter,
    ) -> None:
        check_fits(chain.positions, ids, count)
        self._clock = Clock(timer)
        self._chain = self._clock.timed(chain)
        self._ids = list(ids)
        self._opened = Opened(self._chain)
        with self._clock.lap() as prefill:
            self.tokens = [following(self._opened, chain.embed(ids), len(ids))]
        self.prefill = sum(prefill.values())
        self.steps: list[dict[str, float]] = []

    def __call__(self) -> None:
        """Take one step."""
        position = len(self._ids) + len(self.tokens)
        with self._clock.lap() as parts:
            if self._chain.goes_on:
                hidden = self._chain.embed(self.tokens[-1:])
            else:
                self._opened = Opened(self._chain)
                hidden = self._chain.embed([*self._ids, *self.tokens])
            self.tokens.append(following(self._opened, hidden, position))
        self.steps.append(parts)

    def profile(self, count: int) -> dict[str, float]:
        """Median seconds by part over the last `count` steps."""
        counted = self.steps[-count:]
        parts = dict.fromkeys(part for step in counted for part in step)
        return {part: float(np.median([step.get(part, 0.0) for step in counted])) for part in parts}


def decode(
    chain: Chain, ids: Sequence[int], count: int, timer: Timer = time.perf_counter
) -> Decoded:
    """The `count` likeliest next tokens, one by one, each step timed.

    A chain with states is given the prompt in calls of its largest T, then every new token alone;
    any other is given the whole text again for every token.

    Raises:
        ExecutionError: there is no prompt, no token is asked for, they do not fit the chain, or a
            logit is not finite.
    """
    step = Stepper(chain, ids, count, timer)
    for _ in range(count - 1):
        step()
    return Decoded(tuple(step.tokens), tuple(step.steps), step.prefill)


def following(opened: Opened, hidden: FloatArray, position: int) -> int:
    """The likeliest token at `position`, after the next hidden states `[T, C]`."""
    return likeliest(opened.head(last(opened.blocks(hidden)))[-1], position)


def likeliest(logits: FloatArray, position: int) -> int:
    """The token of the largest logit `[V]`, the first of equals.

    Raises:
        ExecutionError: a logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise ExecutionError(
            f"The logits for position {position} are not all finite, so there is no likeliest "
            "token; pytest --ane-shards=all -m gate says which shard gives NaN or infinity."
        )
    return int(logits.argmax())


def check_fits(positions: int | None, ids: Sequence[int], count: int) -> None:
    """Whether a prompt and tokens after it fit so many positions; the last token takes none.

    Raises:
        ExecutionError: they cannot.
    """
    if not ids:
        raise ExecutionError("The prompt has no tokens, so there is nothing to continue.")
    if count < 1:
        raise ExecutionError(f"{count} tokens cannot be decoded; ask for at least one.")
    if positions is not None and len(ids) + count - 1 > positions:
        raise ExecutionError(
            f"A prompt of {len(ids)} tokens and {count} more do not fit the {positions} "
            "positions that the shards take; ask for fewer, or raise context (with states) or "
            "max-tokens (without) in shards.toml."
        )
