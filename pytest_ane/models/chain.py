"""A chain: all shards of a model wired into a stack, from token ids to logits.

`Decoder` runs a text that grows; `Decoding` times every step of it by part. `ShardSequence` is one
shard's artifact as a step of a chain, call by call.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from pytest_ane.manifest.chain import EMBEDDING, LOGITS
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.families import Reference, Streams, Wire, apply_output, shard_input

ShardRun: TypeAlias = Callable[[FloatArray], FloatArray]
"""A shard at some point of one sequence: maps the next positions `[T, C]` to `[T, C']`."""

NO_TOKEN = -1
"""Stands for a token whose logits are not finite, and for all after it; no reference has it."""


Watch: TypeAlias = "Callable[[Wire, Streams], None]"
"""Called after each block with its wire and the streams, of all positions."""
Residual: TypeAlias = Callable[[Sequence[FloatArray]], "list[FloatArray] | None"]
"""What the residual path alone gives of sequences `[T, C]`; None where there is none."""


@dataclass(frozen=True)
class ChainStep:
    """One shard of a chain and its place in it.

    Attributes:
        open: begins a sequence.
        sees: as `Layout.sees`; where it is `call`, a sequence has to be given at once.
        together: several whole sequences at once, where that is cheaper than one by one.
        causal: whether position 0 sees itself alone.
    """

    wire: Wire
    open: Callable[[], ShardRun]
    sees: Literal["itself", "call", "state"] = "call"
    together: Reference | None = None
    residual: Residual = lambda hidden: None
    causal: bool = True

    def all(self, sequences: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs for whole sequences `[T, C]`, each from position 0."""
        if self.together is not None:
            return self.together(sequences)
        return [self.open()(sequence) for sequence in sequences]

    @property
    def shard(self) -> str:
        """The shard's id, `L00`."""
        return self.wire.shard


class Answer(NamedTuple):
    """A chain's logits for a text and its greedy continuation.

    Attributes:
        logits: `[T, V]` of the text's own positions.
        tokens: the likeliest continuation, `NO_TOKEN` from where a logit is not finite.
        leads: of each token, the best logit minus the second: a small one is a near tie.
    """

    logits: FloatArray
    tokens: tuple[int, ...]
    leads: tuple[float, ...]


@dataclass(frozen=True)
class Chain:
    """Shards in running order.

    Attributes:
        positions: the longest sequence that they can take, if there is an end.
    """

    embed: Callable[[Sequence[int]], FloatArray]
    steps: tuple[ChainStep, ...]
    positions: int | None = None

    @property
    def blocks(self) -> tuple[ChainStep, ...]:
        """All steps but the head's slices, in running order."""
        return tuple(step for step in self.steps if not step.wire.is_head)

    @property
    def embeds(self) -> bool:
        """Whether it gives a text's embedding, and no logits."""
        return any(step.wire.gives == EMBEDDING for step in self.steps)

    @property
    def goes_on(self) -> bool:
        """Whether a sequence may be given piece by piece: what a block sees is in its states."""
        return not any(step.sees == "call" for step in self.blocks)

    def opened(self) -> list[tuple[ChainStep, ShardRun]]:
        """Every step with its shard at the start of a sequence."""
        return [(step, step.open()) for step in self.steps]

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Float32 logits `[T, V]` for every position of a sequence of T tokens."""
        return Decoder(self, ids).logits(len(ids))

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        """An encoder's float32 embedding `[1, C]` of a text."""
        decoder = Decoder(self, ids)
        return decoder.finished(decoder.streams())[EMBEDDING]

    def answer(
        self, ids: Sequence[int], count: int, guess: Sequence[int] = (),
        watch: Watch | None = None, own: int | None = None,
    ) -> Answer:  # fmt: skip
        """Logits `[T, V]` of a text, and the `count` likeliest next tokens one by one.

        A chain with states is given the text, then one new token at a time; any other the whole
        text again for every token. As no position sees a later one, such a chain is given a good
        `guess` of the tokens at once: those that it agrees with cost one run in all. `watch` sees
        the text's own positions alone. With `own` the tokens continue the text's first `own`
        tokens; those after them are an answer, and the first of the guess.
        """
        decoder = Decoder(self, ids)
        logits = decoder.logits(len(ids), watch)
        own = len(ids) if own is None else own
        draft = [*ids[own:], *guess[len(ids) - own :]][: max(count - 1, 0)]
        rows: list[FloatArray] = []
        tokens: list[int] = []

        def take(found: Iterable[FloatArray]) -> None:
            """Go on as long as the tokens are those of the draft, which gave the rows."""
            for row in found:
                if tokens and draft[len(tokens) - 1 : len(tokens)] != tokens[-1:]:
                    return
                rows.append(row)
                tokens.append(likeliest_token(row))

        if self.goes_on and count and own < len(ids):
            decoder = Decoder(self, ids[:own])
            take(decoder.logits())
        else:
            take(logits[own - 1 :])
        ahead = draft[len(tokens) - 1 :]
        if not self.goes_on and ahead[:1] == tokens[-1:]:
            decoder.ids = [*ids[:own], *draft]
            take(decoder.logits(len(ahead)))
        while len(tokens) < count and tokens[-1] != NO_TOKEN:
            decoder.ids = [*ids[:own], *tokens]
            rows.append(decoder.logits()[0])
            tokens.append(likeliest_token(rows[-1]))
        leads, lost = list(map(lead, rows)), count - len(tokens)
        tokens, leads = tokens + [NO_TOKEN] * lost, leads + [math.nan] * lost
        return Answer(logits, tuple(tokens[:count]), tuple(leads[:count]))


class Decoder:
    """A text that grows, and its logits: the one loop body of greedy decoding.

    Attributes:
        ids: the text so far; append to it, or replace what follows the positions already run.
        done: positions that the chain has run, where it goes on from its states.
    """

    def __init__(self, chain: Chain, ids: Sequence[int]) -> None:
        self.ids, self.done = list(ids), 0
        self._chain, self._runs = chain, chain.opened()

    def logits(self, count: int = 1, watch: Watch | None = None) -> FloatArray:
        """Logits `[count, V]` of the last positions; without states the whole text runs again."""
        if self._chain.embeds:
            raise ExecutionError("an encoder gives embeddings and no logits, so no text goes on.")
        if not self._chain.goes_on:
            self._runs, self.done = self._chain.opened(), 0
        streams = self.streams(watch)
        ends = {name: rows[len(rows) - count :] for name, rows in streams.items()}
        return self.finished(ends)[LOGITS]

    def streams(self, watch: Watch | None = None) -> Streams:
        """The streams after the last block, `[T, C]` for the new positions; no head runs."""
        streams: Streams = {"x": self._chain.embed(self.ids[self.done :])}
        self.done = len(self.ids)
        self._run(streams, head=False, watch=watch)
        return streams

    def finished(self, streams: Streams) -> Streams:
        """The streams after the head, which takes all their positions."""
        self._run(streams, head=True)
        return streams

    def _run(self, streams: Streams, *, head: bool, watch: Watch | None = None) -> None:
        for step, run in self._runs:
            if step.wire.is_head == head:
                apply_output(streams, step.wire, run(shard_input(streams, step.wire)))
                if watch is not None:
                    watch(step.wire, streams)


def likeliest_token(logits: FloatArray) -> int:
    """The first of the best logits; `NO_TOKEN` if one is not finite, where `argmax` finds any."""
    return int(logits.argmax()) if np.isfinite(logits).all() else NO_TOKEN


def lead(logits: FloatArray) -> float:
    """The best logit minus the second; NaN if both are infinite."""
    second, best = np.partition(logits, -2)[-2:]
    with np.errstate(invalid="ignore"):
        return float(best - second)


Timer: TypeAlias = Callable[[], float]
"""A clock of seconds."""
HOST = "host"
"""The part of a step that is no shard's: embedding, streams, the likeliest token."""


class Decoding:
    """Continues a prompt by the likeliest token, one at every call, and times it by part.

    A chain with states computes one position a call, any other the whole text again. `count` tokens
    are to come, the one after the prompt, which is computed here, included.

    Attributes:
        tokens: the continuation so far.
        steps: for each further token seconds by part, kinds of shards and `host`.

    Raises:
        ExecutionError: prompt and tokens do not fit the chain, or a logit is not finite.
    """

    def __init__(
        self, chain: Chain, ids: Sequence[int], count: int, timer: Timer = time.perf_counter
    ) -> None:
        if not ids:
            raise ExecutionError("The prompt has no tokens, so there is nothing to continue.")
        if count < 1:
            raise ExecutionError(f"{count} tokens cannot be decoded; ask for at least one.")
        # The last token takes no position.
        if chain.positions is not None and len(ids) + count - 1 > chain.positions:
            raise ExecutionError(
                f"A prompt of {len(ids)} tokens and {count} more do not fit the {chain.positions} "
                "positions that the shards take; ask for fewer, or raise context (with states) or "
                "max-tokens (without) in shards.toml."
            )
        self._timer, self._spent = timer, defaultdict[str, float](float)
        self._decoder = Decoder(replace(chain, steps=tuple(map(self._timed, chain.steps))), ids)
        self.tokens: list[int] = []
        self.steps: list[dict[str, float]] = []
        self()
        self.steps.clear()

    def __call__(self) -> None:
        """Take one step."""
        self._spent.clear()
        start = self._timer()
        ids = self._decoder.ids
        if (token := likeliest_token(self._decoder.logits()[0])) == NO_TOKEN:
            raise ExecutionError(
                f"The logits for position {len(ids)} are not all finite, so there is no likeliest "
                "token; pytest --ane-shards=all -m gate says which shard gives NaN or infinity."
            )
        ids.append(token)
        whole = self._timer() - start
        self.tokens.append(token)
        self.steps.append({**self._spent, HOST: whole - sum(self._spent.values())})

    @property
    def seconds(self) -> tuple[float, ...]:
        """Time of every step."""
        return tuple(sum(parts.values()) for parts in self.steps)

    def profile(self, count: int) -> dict[str, float]:
        """Median seconds by part over the last `count` steps."""
        counted = self.steps[-count:]
        parts = dict.fromkeys(part for step in counted for part in step)
        return {part: float(np.median([step.get(part, 0.0) for step in counted])) for part in parts}

    def _timed(self, step: ChainStep) -> ChainStep:
        def open_sequence() -> ShardRun:
            run = step.open()

            def timed(hidden: FloatArray) -> FloatArray:
                start = self._timer()
                result = run(hidden)
                self._spent[step.wire.kind] += self._timer() - start
                return result

            return timed

        return replace(step, open=open_sequence)
