"""A sequence that goes on by drafts, and comes again one token at a time at a near tie.

A call of width w and w calls of one token are the same sums in another order, so that fp16 results
may differ in the last bit, and a near tie may fall the other way. So a token whose lead (best logit
minus second) is below a margin is decided by plain steps: the sequence goes back to the last
position that only plain steps have led to, and comes again one token at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytest_ane.chain.chain import Chain, Marks, Opened, last, lead
from pytest_ane.chain.decode import Timer, likeliest
from pytest_ane.core.arrays import FloatArray
from pytest_ane.gates.throughput.counters import Speculated

MARGIN = 0.0625
"""Leads below this are near ties; see docs/explanations/speculative.md for what was measured."""


class Verifier:
    """A sequence that goes on by drafts.

    Attributes:
        ids: the prompt and all tokens so far; all but the last have been given to the chain.
        found: what came of it.
    """

    def __init__(
        self, chain: Chain, ids: Sequence[int], margin: float, timer: Timer = time.perf_counter
    ) -> None:
        self.ids = list(ids)
        self.found = Speculated()
        self._chain, self._margin, self._timer = chain, margin, timer
        self._opened = Opened(chain)
        # Up to where plain steps alone have led; None: all the way.
        self._plain: tuple[int, Marks] | None = None
        start = self._timer()
        (row,) = self._opened.head(last(self._opened.blocks(chain.embed(ids))))
        self._take(likeliest(row, len(ids)))
        self.found.prefill = self._timer() - start

    def room(self, width: int) -> int:
        """Positions that the next call may have, at most `width`."""
        ends = self._chain.positions
        return width if ends is None else min(width, ends - len(self.ids) + 1)

    def step(self) -> None:
        """One token without a draft."""
        start = self._timer()
        (row,) = self._rows(self.ids[-1:])
        decided = self._is_decided(row)
        self.found.steps.append(self._timer() - start)
        self._take(likeliest(row, len(self.ids)) if decided else self._replayed())

    def verify(self, drafts: Sequence[int], most: int) -> None:
        """One to `most` tokens from one call: drafts it agrees with, and the one after them."""
        start, known = self._timer(), len(self.ids)
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
        self.found.calls.append(self._timer() - start)
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
            start = self._timer()
            (row,) = self._rows([token])
            self.found.replays.append(self._timer() - start)
        return likeliest(row, len(self.ids))

    def _take(self, token: int) -> None:
        self.ids.append(token)
        self.found.tokens.append(token)
