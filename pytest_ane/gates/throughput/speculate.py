"""Speculative decoding: a verifier of width w takes the last token and w - 1 drafts in one call.

Greedy and exact: a draft counts only where it is what the chain itself says. Source: Leviathan,
Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192,
with a draft that is certain, so that a token is accepted if it is the likeliest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pytest_ane.chain.chain import Chain
from pytest_ane.chain.decode import Timer, check_fits
from pytest_ane.gates.throughput.counters import Speculated
from pytest_ane.gates.throughput.ngram import Lookup
from pytest_ane.gates.throughput.verifier import MARGIN, Verifier
from pytest_ane.gates.throughput.width import check_width

Drafter: TypeAlias = Callable[[Sequence[int], int], Sequence[int]]
"""From all tokens so far to at most so many that may follow, or none."""


def speculate(
    chain: Chain,
    ids: Sequence[int],
    count: int,
    width: int,
    *,
    margin: float = MARGIN,
    draft: Drafter | None = None,
    timer: Timer = time.perf_counter,
) -> Speculated:
    """The `count` likeliest next tokens, by calls of up to `width` positions.

    The tokens are those of `decode` if no lead moves by `margin` or more between a call of `width`
    positions and calls of one.

    Args:
        chain: with states, or of shards that see their own position only.
        ids: the prompt.
        count: tokens to decode.
        width: positions of a call: the last token and `width - 1` drafts.
        margin: leads below it are decided by plain steps.
        draft: where drafts come from; default: `ngram.Lookup`.
        timer: the clock.

    Raises:
        ExecutionError: as `decode` says; or the width is not for this chain, or the chain cannot
            be given a sequence piece by piece and go back in it.
    """
    check_fits(chain.positions, ids, count)
    check_width(width, chain.widest, goes_on=chain.goes_on)
    draft = draft or Lookup()
    verifier = Verifier(chain, ids, margin, timer)
    found = verifier.found
    while len(found.tokens) < count:
        wanted = verifier.room(width) - 1
        drafts = draft(verifier.ids, wanted)[:wanted]
        if drafts:
            verifier.verify(drafts, count - len(found.tokens))
        else:
            verifier.step()
    return found
