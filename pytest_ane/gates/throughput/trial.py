"""Plain and speculative decoding of one prompt, and what each costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ane.chain.chain import Chain
from pytest_ane.chain.decode import Decoded, Timer, decode
from pytest_ane.gates.throughput.breakeven import BreakEven
from pytest_ane.gates.throughput.counters import Speculated
from pytest_ane.gates.throughput.speculate import speculate
from pytest_ane.gates.throughput.verifier import MARGIN
from pytest_ane.gates.throughput.width import check_width, time_calls


@dataclass(frozen=True)
class Trial:
    """What was measured.

    Attributes:
        plain: decoding one token at a time.
        calls: seconds of calls of `width` positions on the same text, timed apart.
        found: decoding with drafts.
    """

    plain: Decoded
    calls: tuple[float, ...]
    found: Speculated
    width: int

    @property
    def cost(self) -> BreakEven:
        """A call against a plain step, by medians."""
        steps, calls = self.plain.seconds, self.calls
        return BreakEven(float(np.median(steps)), float(np.median(calls)), self.width)

    @property
    def tok_s(self) -> float:
        """Tokens a second with drafts, the first token left out."""
        return (len(self.found.tokens) - 1) / self.found.seconds

    @property
    def speedup(self) -> float:
        """Speed with drafts over that of the median plain step."""
        return self.tok_s * self.cost.t1

    @property
    def predicted(self) -> float:
        """Tokens a second that the counters and the cost of calls and steps give."""
        return self._tok_s(len(self.found.replays))

    @property
    def without_ties(self) -> float:
        """The speed-up that the counters give if nothing had been run again for a near tie."""
        return self._tok_s(0) * self.cost.t1

    def _tok_s(self, again: int) -> float:
        found = self.found
        return self.cost.tok_s(found.verifier_calls, found.accepted, found.fallbacks, again)

    @property
    def differs(self) -> int | None:
        """The first token, from 0, at which the two do not say the same; None: they do."""
        pairs = zip(self.plain.tokens, self.found.tokens, strict=True)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), None)


def run_trial(
    chain: Chain,
    ids: Sequence[int],
    count: int,
    width: int,
    margin: float = MARGIN,
    say: Callable[[str], None] = lambda _: None,
    timer: Timer = time.perf_counter,
) -> Trial:
    """Decode `count` tokens after a prompt both ways, and time calls of `width` between them.

    Args:
        chain: with states.
        ids: the prompt.
        count: tokens, at least 2: what is timed comes after the first.
        width: positions of a call.
        margin: as `speculate` takes it.
        say: told what goes on.
        timer: the clock of all three.

    Raises:
        ExecutionError: as `speculate` says.
    """
    check_width(width, chain.widest, goes_on=chain.goes_on)
    say("plain decoding")
    plain = decode(chain, ids, count, timer)
    say(f"calls of width {width}")
    calls = time_calls(chain, [*ids, *plain.tokens], width, timer=timer)
    say("decoding with drafts")
    found = speculate(chain, ids, count, width, margin=margin, timer=timer)
    return Trial(plain, tuple(calls), found, width)
