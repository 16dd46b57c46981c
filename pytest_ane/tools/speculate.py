"""`pytest-ane speculate`: measure whether drafts by prompt lookup make decoding faster.

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

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from math import isfinite
from statistics import median
from typing import TypeAlias

from pytest_ane.cli.options import add_stack, count, positive
from pytest_ane.cli.output import Output, tell
from pytest_ane.manifest import Prompt
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError, ManifestError
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
from pytest_ane.project import process
from pytest_ane.project.models import OpenModel
from pytest_ane.tools._stack import open_stack

EXAMPLE = "pytest-ane speculate --prompt facts --width 4 --tokens 40"
_CHARTED = 32
"""Widest call whose yield is told beside the measured one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the prompt, and the shape of a verifier call."""
    add = parser.add_argument
    add_stack(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="NAME", help="a golden prompt (default: the first)")
    prompt.add_argument(
        "--prompt-ids", type=_ids, metavar="ID,...", help="token ids, such as 2,42, as the prompt"
    )
    words = "positions of a call: the last token and N - 1 drafts (default: 4)"
    add("--width", type=count, default=4, metavar="N", help=words)
    add("--tokens", type=count, default=40, metavar="N", help="to decode (default: 40)")
    add("--margin", type=float, metavar="X", help="of two logits, below which a tie is near")
    words = "tokens at the end of the text that must have occurred before (default: 2)"
    add("--ngram-min", type=count, default=2, metavar="N", help=words)
    words = "only the break-even, of these milliseconds of a step and of a call"
    add("--times", type=positive, nargs=2, metavar=("T1", "TV"), help=words)


def _ids(text: str) -> tuple[int, ...]:
    ids = text.split(",")
    if not all(id.isdecimal() for id in ids):
        raise argparse.ArgumentTypeError(f"{text} is no list of token ids, such as 2,42")
    return tuple(map(int, ids))


def run(options: argparse.Namespace) -> Output:
    """Plain and speculative decoding of one prompt, and the break-even between them."""
    process.choose()
    width, tokens, name, ids = options.width, options.tokens, options.prompt, options.prompt_ids
    margin = MARGIN if options.margin is None else options.margin
    check_width(width)
    if tokens < 2:
        raise ExecutionError("--tokens 1: the first token comes from the prompt; give 2 or more.")
    if not (isfinite(margin) and margin >= 0):
        raise ExecutionError(f"--margin {margin}: give a difference of logits, 0 or above.")
    if options.times is not None:
        t1, tv = (ms / 1000 for ms in options.times)
        cost = BreakEven(t1, tv, width)
        yield break_even(cost)
        return {"command": "speculate", "cost": cost}

    def check(opened: OpenModel) -> None:
        named = [prompt.ids for prompt in opened.prompts if name in (prompt.name, None)]
        if not named:
            raise ManifestError(
                f"--prompt {name}: {opened.model.name} has no such golden prompt; there is: "
                f"{', '.join(prompt.name for prompt in opened.model.prompts)}."
            )
        layouts = (opened.language_model.layout(wire.shard) for wire in opened.wiring)
        goes_on = all(layout.sees != "call" for layout in layouts)
        check_width(width, opened.model.max_tokens, goes_on=goes_on)
        check_fits(opened.language_model.positions, named[0], tokens)

    own = Prompt(name="prompt-ids", ids=ids, greedy=0) if ids else None
    with open_stack(options.manifest, options.model, options.cache, check, own) as stack:
        prompt = next(each for each in stack.prompts if name in (each.name, None))
        backend = stack.provenance["backend"]
        # Of one thread, so that seconds of the processor are its own, whoever else runs.
        alone = backend == "cpu" and os.environ.get("OPENBLAS_NUM_THREADS") == "1"
        timer = time.process_time if alone else time.perf_counter
        trial = run_trial(stack.chain, prompt.ids, tokens, width, margin, options.ngram_min, timer)
        tell("")
        yield (
            f"{stack.model}, prompt {prompt.name!r}: {len(prompt.ids)} tokens, then {tokens} "
            f"greedy ones · backend {backend}, {'processor' if alone else 'wall'} time"
        )
        yield from lines(trial)
        if (at := trial.differs) is not None:
            raise ExecutionError(
                f"Token {at + 1} is {trial.speculated.tokens[at]}, and {trial.tokens[at]} in plain "
                f"decoding: a wide call moved a lead by more than {margin:g}; give a larger "
                "--margin."
            )
        yield f"the same {len(trial.tokens)} tokens as plain decoding"
    # As many widths again as the one that was measured.
    draft = partial(lookup, shortest=options.ngram_min)
    widths = [
        yield_of(prompt.ids, trial.tokens, each, draft)
        for each in range(2, min(2 * width, _CHARTED) + 1)
    ]
    return {
        "command": "speculate",
        "model": stack.model,
        "prompt": prompt.name,
        **vars(trial),
        "provenance": stack.provenance,
        "widths": widths,
        "cost": trial.cost,
        "tok_s": trial.tok_s,
        "speedup": trial.speedup,
    }


def break_even(cost: BreakEven) -> str:
    """The tokens and drafts that a call needs, or that none is enough."""
    needs = f"break-even: a call must yield {cost.tokens_needed:.2f} tokens"
    if cost.share_needed is None or cost.acceptance_needed is None:
        return f"{needs}, more than its width {cost.width}: unreachable, at best {cost.best:.2f}x"
    return (
        f"{needs}: {cost.share_needed:.1%} of all drafts accepted, or each with probability "
        f"{cost.acceptance_needed:.2f} if independent; at best {cost.best:.2f}x, all accepted"
    )


def lines(trial: Trial) -> Iterator[str]:
    """The cost of a step and a call, the break-even, the counters, and the speed reached."""
    cost, counted = trial.cost, trial.speculated
    yield (
        f"plain: {_ms(cost.t1)} a token, {1 / cost.t1:.2f} tok/s (median of {len(trial.steps)} "
        f"steps) · verifier of width {cost.width}: {_ms(cost.tv)} a call (median of "
        f"{len(trial.calls)} calls)"
    )
    yield break_even(cost)
    share = "none" if counted.acceptance is None else f"{counted.acceptance:.1%}"
    yield (
        f"verifier_calls={len(counted.calls)} drafted={counted.drafted} "
        f"accepted={counted.accepted} fallbacks={len(counted.steps)} acceptance={share} "
        f"replayed={len(counted.replays)}"
    )
    a_call = f"{_ms(median(counted.calls))} a call, " if counted.calls else ""
    yield (
        f"speculative: {a_call}{trial.tok_s:.2f} tok/s, {trial.speedup:.2f}x plain; "
        f"predicted {trial.predicted:.2f} tok/s ({trial.predicted / trial.tok_s - 1:+.1%})"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"


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
        """Share of the drafts that became tokens; None without any."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def seconds(self) -> float:
        """Of all that was run."""
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
        """Decode one token without drafts."""
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
