"""Speculative decoding: a verifier of width w takes the last token and w - 1 drafts in one call.

Greedy and exact: a draft counts only where it is what the chain itself says. Source: Leviathan,
Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192,
with a draft that is certain, so that a token is accepted if it is the likeliest.

A call of width w and w calls of one token are the same sums in another order, so that fp16 results
may differ in the last bit, and a near tie may fall the other way. So a token whose lead (best logit
minus second) is below a margin is decided by plain steps: the sequence goes back to the last
position that only plain steps have led to, and comes again one token at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pytest_ane.behaviour import Chain
from pytest_ane.behaviour.chain import Marks, Opened, last, lead
from pytest_ane.errors import ExecutionError
from pytest_ane.sources import FloatArray
from pytest_ane.throughput.decode import check_fits, likeliest
from pytest_ane.throughput.ngram import Lookup

MARGIN = 0.25
"""Leads below this are near ties; see docs/speculative.md for what was measured."""

Drafter: TypeAlias = Callable[[Sequence[int], int], Sequence[int]]
"""From all tokens so far to at most so many that may follow, or none."""


@dataclass
class Speculated:
    """A greedy continuation and what it took.

    Every token but the first comes from a call with drafts (that it accepts, or the one after
    them) or from a step without: `len(tokens) - 1 == verifier_calls + accepted + fallbacks`.

    Attributes:
        tokens: the continuation; the first comes from the prompt's own last position.
        calls: seconds of every call with drafts.
        steps: seconds of every step without, for lack of a draft.
        replays: seconds of every step that was run again for a near tie.
        drafted: tokens given to calls as drafts.
        accepted: those of them that became tokens.
        prefill: seconds from the prompt to the first token.
    """

    tokens: list[int] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    replays: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    prefill: float = 0.0

    @property
    def verifier_calls(self) -> int:
        """Calls with drafts."""
        return len(self.calls)

    @property
    def fallbacks(self) -> int:
        """Steps without a draft."""
        return len(self.steps)

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that became tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def seconds(self) -> float:
        """What all tokens but the first took."""
        return sum(self.calls) + sum(self.steps) + sum(self.replays)


def speculate(
    chain: Chain,
    ids: Sequence[int],
    count: int,
    width: int,
    *,
    margin: float = MARGIN,
    draft: Drafter | None = None,
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

    Raises:
        ExecutionError: as `decode` says; or the width is not for this chain, or the chain cannot
            be given a sequence piece by piece and go back in it.
    """
    check_fits(chain, ids, count)
    check_width(chain, width)
    draft = draft or Lookup()
    verifier = _Verifier(chain, ids, margin)
    found = verifier.found
    while len(found.tokens) < count:
        wanted = verifier.room(width) - 1
        drafts = draft(verifier.ids, wanted)[:wanted]
        if drafts:
            verifier.verify(drafts, count - len(found.tokens))
        else:
            verifier.step()
    return found


def check_width(chain: Chain, width: int) -> None:
    """Whether a chain can verify drafts.

    Raises:
        ExecutionError: it cannot.
    """
    if width < 2:
        raise ExecutionError(
            f"A verifier of width {width} takes no draft: it takes the last token and width - 1 "
            "drafts; give a width from 2 on."
        )
    if chain.widest is not None and width > chain.widest:
        raise ExecutionError(
            f"A verifier of width {width} does not fit the shards, which take 1 to {chain.widest} "
            "positions a call; give a smaller width, or raise max-tokens in shards.toml."
        )
    if not chain.goes_on:
        raise ExecutionError(
            "Shards without states take a whole text at once, so that a verifier cannot go on from "
            "the last token; build them with stateful = true in shards.toml."
        )


class _Verifier:
    """A sequence that goes on by drafts.

    Attributes:
        ids: the prompt and all tokens so far; all but the last have been given to the chain.
        found: what came of it.
    """

    def __init__(self, chain: Chain, ids: Sequence[int], margin: float) -> None:
        self.ids = list(ids)
        self.found = Speculated()
        self._chain, self._margin = chain, margin
        self._opened = Opened(chain)
        # Up to where plain steps alone have led; None: all the way.
        self._plain: tuple[int, Marks] | None = None
        start = time.perf_counter()
        (row,) = self._opened.head(last(self._opened.blocks(chain.embed(ids))))
        self._take(likeliest(row, len(ids)))
        self.found.prefill = time.perf_counter() - start

    def room(self, width: int) -> int:
        """Positions that the next call may have, at most `width`."""
        ends = self._chain.positions
        return width if ends is None else min(width, ends - len(self.ids) + 1)

    def step(self) -> None:
        """One token without a draft."""
        start = time.perf_counter()
        (row,) = self._rows(self.ids[-1:])
        decided = self._is_decided(row)
        self.found.steps.append(time.perf_counter() - start)
        self._take(likeliest(row, len(self.ids)) if decided else self._replayed())

    def verify(self, drafts: Sequence[int], most: int) -> None:
        """One to `most` tokens from one call: drafts it agrees with, and the one after them."""
        start, known = time.perf_counter(), len(self.ids)
        here = self._opened.mark()
        self._plain = self._plain or (known - 1, here)
        rows = self._rows([self.ids[-1], *drafts])
        decided = True
        for row, drafted in zip(rows[:most], (*drafts, None), strict=False):
            if not (decided := self._is_decided(row)):
                break
            self._take(likeliest(row, len(self.ids)))
            if self.ids[-1] != drafted:
                break
        if decided and len(self.ids) - known < len(rows):
            self._opened.back(here, len(self.ids) - known)
        self.found.calls.append(time.perf_counter() - start)
        if not decided:
            self._take(self._replayed())
        self.found.drafted += len(drafts)
        self.found.accepted += len(self.ids) - known - 1

    def _rows(self, ids: Sequence[int]) -> FloatArray:
        """Logits `[T, V]` of the next positions."""
        return self._opened.head(self._opened.blocks(self._chain.embed(ids)))

    def _is_decided(self, row: FloatArray) -> bool:
        """Whether plain decoding says the same: it is plain, or the lead is no near tie."""
        return self._plain is None or not lead(row) < self._margin

    def _replayed(self) -> int:
        """The next token, the positions that no plain step has led to given again one by one."""
        assert self._plain is not None
        position, marks = self._plain
        self._opened.back(marks)
        self._plain = None
        for token in self.ids[position:]:
            start = time.perf_counter()
            (row,) = self._rows([token])
            self.found.replays.append(time.perf_counter() - start)
        return likeliest(row, len(self.ids))

    def _take(self, token: int) -> None:
        self.ids.append(token)
        self.found.tokens.append(token)
