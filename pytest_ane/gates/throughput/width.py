"""The width of a verifier: whether a chain takes it, and what a call costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice

from pytest_ane.chain.chain import Chain, Opened
from pytest_ane.chain.decode import Timer
from pytest_ane.core.errors import ExecutionError

CALLS = 8
"""Calls that are timed."""


def check_width(width: int, widest: int | None, *, goes_on: bool) -> None:
    """Whether a chain can verify drafts.

    Args:
        width: positions of a call.
        widest: `Chain.widest`.
        goes_on: `Chain.goes_on`.

    Raises:
        ExecutionError: it cannot.
    """
    if width < 2:
        raise ExecutionError(
            f"A verifier of width {width} takes no draft: it takes the last token and width - 1 "
            "drafts; give a width from 2 on."
        )
    if widest is not None and width > widest:
        raise ExecutionError(
            f"A verifier of width {width} does not fit the shards, which take 1 to {widest} "
            "positions a call; give a smaller width, or raise max-tokens in shards.toml."
        )
    if not goes_on:
        raise ExecutionError(
            "Shards without states take a whole text at once, so that a verifier cannot go on from "
            "the last token; build them with stateful = true in shards.toml."
        )


def time_calls(
    chain: Chain,
    text: Sequence[int],
    width: int,
    calls: int = CALLS,
    timer: Timer = time.perf_counter,
) -> list[float]:
    """Seconds of calls of `width` positions, head included, one to warm up left out.

    They are given a text over and over, from position 0 on, and a new sequence where the positions
    end: what a call costs does not depend on the tokens.
    """
    opened, at, seconds = Opened(chain), 0, []
    tokens = cycle(text)
    for _ in range(calls + 1):
        if chain.positions is not None and at + width > chain.positions:
            opened, at = Opened(chain), 0
        ids = list(islice(tokens, width))
        start = timer()
        opened.head(opened.blocks(chain.embed(ids)))
        seconds.append(timer() - start)
        at += width
    return seconds[1:]
