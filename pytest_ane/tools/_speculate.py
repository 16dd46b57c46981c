"""Speculative decoding: prompt lookup drafts tokens, one call of the chain verifies them.

A verifier of width w takes the last token and w - 1 drafts in one call. Greedy and exact: a draft
counts only where it is the chain's own likeliest token. Sources: Leviathan, Kalman and Matias,
"Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192, with drafts that are
certain; Saxena, "Prompt Lookup Decoding" (2023), n-gram speculation in vLLM and transformers.

When it pays: a call yields 1 to w tokens, the drafts up to the first that is wrong, and one token
of its own. With t1 the seconds of a plain step and tv those of a call, it pays where it yields more
than E = tv / t1 tokens: no guess about drafts is in that. The expected yield under independent
acceptance, each draft being right with probability a given that those before it are, is
1 + a + ... + a^(w-1) = (1 - a^w) / (1 - a) (Leviathan et al., equation 1). No call yields more than
w, so that the best speed-up is w t1 / tv, and where that is below 1 no acceptance is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import TypeAlias

from pytest_ane.cli.output import tell
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.chain import (
    Chain,
    Decoder,
    Marks,
    Timer,
    check_fits,
    decode,
    lead,
    next_token,
)

MARGIN = 0.0625
"""Leads below this are near ties; see docs/explanations/speculative.md for what was measured."""
_LONGEST, SHORTEST = 3, 2
"""N-gram sizes: tokens at the end of a text that have to have occurred before."""
CALLS = 8
"""Verifier calls that are timed."""

Drafter: TypeAlias = Callable[[Sequence[int], int], Sequence[int]]
"""From all tokens so far to at most so many that may follow, or none."""


@dataclass(frozen=True)
class BreakEven:
    """Plain steps of `t1` seconds, above 0, against calls of `tv`, of a `width` from 2 on."""

    t1: float
    tv: float
    width: int

    @property
    def tokens_needed(self) -> float:
        """E, which a call must yield on average to be as fast as plain steps."""
        return self.tv / self.t1

    @property
    def best(self) -> float:
        """Speed-up where every draft is right; below 1 no acceptance is enough."""
        return self.width / self.tokens_needed

    @property
    def share_needed(self) -> float | None:
        """Share of all drafts that must become tokens, (E - 1) / (w - 1); None: unreachable.

        This is `accepted / drafted` as it is counted, of any drafts, independent or not.
        """
        return max(0.0, (self.tokens_needed - 1) / (self.width - 1)) if self.best >= 1 else None

    @property
    def acceptance_needed(self) -> float | None:
        """The a at which independent drafts yield E tokens a call; None: unreachable.

        By bisection, as the yield rises with it.
        """
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            enough = expected_tokens(middle, self.width) >= self.tokens_needed
            low, high = (low, middle) if enough else (middle, high)
        return high if self.best >= 1 else None

    def tok_s(self, calls: int, accepted: int, steps: int, again: int = 0) -> float:
        """Tokens a second of calls, of drafts accepted, and of steps, some run `again` for none."""
        seconds = calls * self.tv + (steps + again) * self.t1
        return (calls + accepted + steps) / seconds


def expected_tokens(a: float, width: int) -> float:
    """Tokens of a call at independent acceptance `a`."""
    return sum(a**i for i in range(width))


def lookup(ids: Sequence[int], count: int, shortest: int = SHORTEST) -> list[int]:
    """The `count` tokens that followed the last time a text ended like this, or none.

    N-grams of 3 down to `shortest` tokens at its end are looked up. Where the latest occurrence is
    so near that drafts run into the end, they go on into themselves: a text with a period is
    drafted with that period.
    """
    for size in range(max(_LONGEST, shortest), shortest - 1, -1):
        for start in range(len(ids) - 1, size - 1, -1):
            if ids[start - size : start] == ids[-size:]:
                period = len(ids) - start
                return [ids[start + i % period] for i in range(count)]
    return []


@dataclass
class Speculated:
    """A greedy continuation and its counters.

    Every token but the first, which is the prompt's, comes from a call with drafts (that it
    accepts, or the one after them) or from a step for lack of any:
    `len(tokens) - 1 == len(calls) + accepted + len(steps)`.

    Attributes:
        calls, steps, replays: seconds of each; a replay is a step run again for a near tie.
        drafted, accepted: tokens given to calls, and those of them that became tokens.
    """

    tokens: list[int] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    replays: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def seconds(self) -> float:
        return sum(self.calls) + sum(self.steps) + sum(self.replays)


class Verifier:
    """Speculative decoding: verifies a draft in one call; steps token by token at a near tie.

    A call of width w and w calls of one token are the same sums in another order, so that fp16
    results may differ in the last bit, and a near tie may fall the other way. A token whose lead
    (best logit minus second) is below the margin is therefore decided by plain steps: the sequence
    goes back to the last position that only plain steps have led to, and repeats the tokens since
    one at a time.

    Attributes:
        ids: the prompt and all tokens so far; the chain has run all but the last.
        counted: the continuation and its counters.
    """

    def __init__(
        self, chain: Chain, ids: Sequence[int], margin: float, timer: Timer = time.perf_counter
    ) -> None:
        self.counted = Speculated()
        self._decoder = Decoder(chain, ids)
        self.ids = self._decoder.ids
        self._margin, self._timer = margin, timer
        # Position up to which every token was decoded without drafts; None if all were.
        self._plain: tuple[int, Marks] | None = None
        self._take(self._decoder.logits()[0])

    def step(self) -> None:
        start = self._timer()
        (row,) = self._decoder.logits()
        decided = self._is_decided(row)
        self.counted.steps.append(self._timer() - start)
        self._take(row if decided else self._replayed())

    def verify(self, drafts: Sequence[int], most: int) -> None:
        """Decode one to `most` tokens by one call: the drafts it agrees with, and its own next."""
        start, known = self._timer(), len(self.ids)
        marks = self._decoder.mark()
        self._plain = self._plain or (known - 1, marks)
        self.ids.extend(drafts)
        rows = self._decoder.logits(len(drafts) + 1)
        del self.ids[known:]
        decided = True
        for row, drafted in zip(rows[:most], (*drafts, None), strict=False):
            if not (decided := self._is_decided(row)):
                break
            self._take(row)
            if self.ids[-1] != drafted:
                break
        if decided and len(self.ids) - known < len(rows):
            self._decoder.back(marks, known - 1, len(self.ids) - known)
        self.counted.calls.append(self._timer() - start)
        if not decided:
            self._take(self._replayed())
        self.counted.drafted += len(drafts)
        self.counted.accepted += len(self.ids) - known - 1

    def _is_decided(self, row: FloatArray) -> bool:
        return self._plain is None or not lead(row) < self._margin

    def _replayed(self) -> FloatArray:
        """The next logits, after repeating in plain steps what drafts have led to."""
        assert self._plain is not None
        position, marks = self._plain
        self._decoder.back(marks, position)
        self._plain = None
        tokens = self.ids[position:]
        del self.ids[position:]
        for token in tokens:
            self.ids.append(token)
            start = self._timer()
            row: FloatArray = self._decoder.logits()[0]
            self.counted.replays.append(self._timer() - start)
        return row

    def _take(self, row: FloatArray) -> None:
        token = next_token(row, len(self.ids))
        self.ids.append(token)
        self.counted.tokens.append(token)


def speculate(
    chain: Chain,
    ids: Sequence[int],
    count: int,
    width: int,
    *,
    margin: float = MARGIN,
    draft: Drafter = lookup,
    timer: Timer = time.perf_counter,
) -> Speculated:
    """The `count` likeliest next tokens, by calls of up to `width` positions.

    The tokens are those of `decode` if no lead moves by `margin` or more between a call of `width`
    positions and calls of one: smaller leads are decided by plain steps. `ExecutionError` as of
    `decode` and `check_width`, and where the chain cannot go back in a sequence.
    """
    check_fits(chain.positions, ids, count)
    check_width(width, chain.widest, goes_on=chain.goes_on)
    verifier = Verifier(chain, ids, margin, timer)
    tokens = verifier.counted.tokens
    while len(tokens) < count:
        wanted = width - 1
        if chain.positions is not None:
            wanted = min(wanted, chain.positions - len(verifier.ids))
        if drafts := draft(verifier.ids, wanted)[:wanted]:
            verifier.verify(drafts, count - len(tokens))
        else:
            verifier.step()
    return verifier.counted


@dataclass(frozen=True)
class Yield:
    """What drafts for a known text yield in calls of a width, 1 without calls; of no near tie."""

    width: int
    calls: int
    tokens_per_call: float


def yield_of(ids: Sequence[int], tokens: Sequence[int], width: int, draft: Drafter) -> Yield:
    """How far drafts agree with a prompt's known continuation; no model runs."""
    text, rest = [*ids, *tokens[:1]], list(tokens[1:])
    calls = accepted = 0
    while rest:
        drafts = draft(text, width - 1)[: width - 1]
        pairs = zip(drafts, rest, strict=False)
        agreed = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(drafts), len(rest)))
        agreed = min(agreed, len(rest) - 1)
        calls += bool(drafts)
        accepted += agreed
        text += rest[: agreed + 1]
        del rest[: agreed + 1]
    return Yield(width, calls, 1 + accepted / calls if calls else 1.0)


def check_width(width: int, widest: int | None = None, *, goes_on: bool = True) -> None:
    """`ExecutionError` where a chain of this `widest` and `goes_on` cannot verify drafts."""
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
    """Seconds of calls of `width` positions, head included, after one that warms up.

    They are given a text over and over, from position 0 on, and a new sequence where the positions
    end: the cost of a call does not depend on the tokens.
    """
    decoder, seconds, tokens = Decoder(chain, ()), [], cycle(text)
    for _ in range(calls + 1):
        if chain.positions is not None and decoder.done + width > chain.positions:
            decoder = Decoder(chain, ())
        decoder.ids.extend(islice(tokens, width))
        start = timer()
        decoder.logits(width)
        seconds.append(timer() - start)
    return seconds[1:]


@dataclass(frozen=True)
class Trial:
    """Plain and speculative decoding of one prompt.

    Attributes:
        tokens, steps: of plain decoding, and seconds of every step.
        calls: seconds of verifier calls on the same text, timed apart.
    """

    tokens: tuple[int, ...]
    steps: tuple[float, ...]
    calls: tuple[float, ...]
    speculated: Speculated
    width: int

    @property
    def cost(self) -> BreakEven:
        """A call against a plain step, by medians."""
        return BreakEven(median(self.steps), median(self.calls), self.width)

    @property
    def tok_s(self) -> float:
        """Tokens a second with drafts, the first token left out."""
        return (len(self.speculated.tokens) - 1) / self.speculated.seconds

    @property
    def speedup(self) -> float:
        """Speed with drafts over that of the median plain step."""
        return self.tok_s * self.cost.t1

    @property
    def predicted(self) -> float:
        """Tokens a second that the counters and the cost of calls and steps give."""
        counted = self.speculated
        again = len(counted.replays)
        return self.cost.tok_s(len(counted.calls), counted.accepted, len(counted.steps), again)

    @property
    def differs(self) -> int | None:
        """Index of the first token at which the two differ; None if they agree."""
        pairs = zip(self.tokens, self.speculated.tokens, strict=True)
        return next((i for i, (plain, drafted) in enumerate(pairs) if plain != drafted), None)


def run_trial(
    chain: Chain,
    ids: Sequence[int],
    count: int,
    width: int,
    margin: float = MARGIN,
    ngram_min: int = SHORTEST,
    timer: Timer = time.perf_counter,
) -> Trial:
    """Decode two tokens or more after a prompt both ways, and time calls between them."""
    check_width(width, chain.widest, goes_on=chain.goes_on)
    tell("plain decoding")
    plain = decode(chain, ids, count, timer)
    tell(f"calls of width {width}")
    calls = time_calls(chain, [*ids, *plain.tokens], width, timer=timer)
    tell("decoding with drafts")
    draft = partial(lookup, shortest=ngram_min)
    drafted = speculate(chain, ids, count, width, margin=margin, draft=draft, timer=timer)
    return Trial(tuple(plain.tokens), plain.seconds, tuple(calls), drafted, width)
