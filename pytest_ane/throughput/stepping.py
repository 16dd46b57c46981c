"""Greedy decoding as a benchmark takes it: a round is one step, its median that of a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from pytest_ane.behaviour import Chain
from pytest_ane.behaviour.chain import Opened
from pytest_ane.throughput.decode import Clock, check_fits, following


class Stepper:
    """Continues a text by the likeliest token, one at every call.

    Args:
        chain: with states, each call computes one position; without, the whole text again.
        ids: the prompt, which is computed here.
        count: tokens that it is to be continued by, the one after the prompt included.
        timer: what the parts' seconds are.

    Attributes:
        tokens: the continuation so far.
        steps: seconds by part, as `Decoded.steps` has them, one entry a call.

    Raises:
        ExecutionError: prompt and tokens do not fit the chain, or a logit is not finite.
    """

    def __init__(
        self,
        chain: Chain,
        ids: Sequence[int],
        count: int,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_fits(chain.positions, ids, count)
        self._clock = Clock(timer)
        self._chain = self._clock.timed(chain)
        self._ids = list(ids)
        self._opened = Opened(self._chain)
        self.tokens = [following(self._opened, chain.embed(ids), len(ids))]
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
