"""Greedy decoding through a chain, with the time that every step takes by part."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import NO_TOKEN, Chain, ChainStep, Decoder, ShardRun, likeliest_token

Timer: TypeAlias = Callable[[], float]
"""A clock of seconds: the wall's, or `time.process_time`, which other processes hardly disturb."""
HOST = "host"
"""The part of a step that is no shard's: embedding, streams, the likeliest token."""


class Decoding:
    """Continues a prompt by the likeliest token, one at every call, and times it by part.

    Args:
        chain: with states, each call computes one position; without, the whole text again.
        ids: the prompt, which is computed here.
        count: tokens that it is to be continued by, the one after the prompt included.
        timer: the clock.

    Attributes:
        tokens: the continuation so far.
        steps: for each further token seconds by part, kinds of shards and `host`; their sum is
            the step's time.

    Raises:
        ExecutionError: prompt and tokens do not fit the chain, or a logit is not finite.
    """

    def __init__(
        self, chain: Chain, ids: Sequence[int], count: int, timer: Timer = time.perf_counter
    ) -> None:
        check_fits(chain.positions, ids, count)
        self._timer, self._spent = timer, defaultdict[str, float](float)
        self._decoder = Decoder(replace(chain, steps=tuple(map(self._timed, chain.steps))), ids)
        self.tokens: list[int] = []
        self.steps: list[dict[str, float]] = []
        self()
        self.steps.clear()

    def __call__(self) -> None:
        """Take one step."""
        with self._lap() as parts:
            token = next_token(self._decoder.logits()[0], len(self._decoder.ids))
            self._decoder.ids.append(token)
        self.tokens.append(token)
        self.steps.append(parts)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Time of every step."""
        return tuple(sum(parts.values()) for parts in self.steps)

    def profile(self, count: int) -> dict[str, float]:
        """Median seconds by part over the last `count` steps."""
        counted = self.steps[-count:]
        parts = dict.fromkeys(part for step in counted for part in step)
        return {part: float(np.median([step.get(part, 0.0) for step in counted])) for part in parts}

    @contextmanager
    def _lap(self) -> Iterator[dict[str, float]]:
        """Yields a dict, filled with the seconds of the body by part; the rest is the host's."""
        self._spent.clear()
        parts: dict[str, float] = {}
        start = self._timer()
        yield parts
        whole = self._timer() - start
        parts |= self._spent | {HOST: whole - sum(self._spent.values())}

    def _timed(self, step: ChainStep) -> ChainStep:
        """The shard, its time added to its kind's."""

        def open_sequence() -> ShardRun:
            run = step.open()

            def timed(hidden: FloatArray) -> FloatArray:
                start = self._timer()
                result = run(hidden)
                self._spent[step.wire.kind] += self._timer() - start
                return result

            return timed

        return replace(step, open=open_sequence)


def decode(
    chain: Chain, ids: Sequence[int], count: int, timer: Timer = time.perf_counter
) -> Decoding:
    """The `count` likeliest next tokens, one by one, each step timed.

    Raises:
        ExecutionError: as `Decoding` says.
    """
    decoding = Decoding(chain, ids, count, timer)
    for _ in range(count - 1):
        decoding()
    return decoding


def next_token(logits: FloatArray, position: int) -> int:
    """The token of the largest logit `[V]`, the first of equals.

    Raises:
        ExecutionError: a logit is not finite.
    """
    if (token := likeliest_token(logits)) == NO_TOKEN:
        raise ExecutionError(
            f"The logits for position {position} are not all finite, so there is no likeliest "
            "token; pytest --ane-shards=all -m gate says which shard gives NaN or infinity."
        )
    return token


def check_fits(positions: int | None, ids: Sequence[int], count: int) -> None:
    """Whether a prompt and tokens after it fit so many positions; the last token takes none.

    Raises:
        ExecutionError: they do not.
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
