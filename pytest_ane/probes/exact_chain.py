"""The float32 model as a chain: golden prompts, exact shards in some places, teacher forcing.

Golden prompts are the float32 model's logits and text, recorded once per model in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.make import Cache
from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.metrics.logits import LogitSummary, compare_logits
from pytest_ane.mlprogram.metrics.tensors import cosine, is_cosine
from pytest_ane.models.chain import Answer, Chain, ChainStep, Decoder, Watch, likeliest_token
from pytest_ane.models.families import LanguageModel, Streams, Wire, apply_output, shard_input
from pytest_ane.probes.recording import RECORDING_VERSION, TokenPrompt, check_finite, load, save

LOGITS_VERSION = 4
"""Raised whenever logits are kept in another way."""


@dataclass(frozen=True, eq=False)
class GoldenPrompt:
    """One golden prompt with the reference's recorded logits and text.

    Attributes:
        logits: float32 `[T, V]` of the reference; of an encoder the text's embedding `[1, C]`.
        ids: the prompt, and the reference's own answer to it where it is judged too.
        greedy: what the reference goes on with after the prompt; an answer begins alike.
        leads: the best logit minus the second, by token of the `greedy` continuation.
        sentence: whether it is one that an encoder's prompts rank, and itself no prompt.
        answered: tokens of `ids`, the last ones, that are the answer.
    """

    name: str
    ids: tuple[int, ...]
    logits: FloatArray
    greedy: tuple[int, ...]
    leads: tuple[float, ...]
    text: str
    sentence: bool = False
    answered: int = 0

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's own tokens."""
        return self.ids[: len(self.ids) - self.answered]

    @property
    def continuation(self) -> tuple[int, ...]:
        """What the reference says to the prompt, as far as it was asked."""
        return max(self.ids[len(self.prompt) :], self.greedy, key=len)


def record_golden(
    cache: Cache,
    identity: dict[str, Any],
    prompts: Callable[[], Sequence[tuple[TokenPrompt, int, int]]],
    spec: Any,
    wiring: Sequence[Wire],
    reference: Callable[[], Chain],
    decode: Callable[[Sequence[int]], str],
    ends: Callable[[], Collection[int]] = frozenset,
    name: str = "",
) -> list[GoldenPrompt]:
    """Recorded references of prompts, each with its greedy and its answer's tokens, made once.

    `spec` is what the prompts depend on besides the identity; `name` is the model's, for messages.
    An answer has fewer tokens where one of `ends` comes, which belongs to none. `reference`,
    `prompts` and `ends` are called only when there is no recording yet.
    """
    key = {**identity, "recording": RECORDING_VERSION, "logits": LOGITS_VERSION, "golden": spec}
    key["wiring"] = [asdict(wire) for wire in wiring]

    def make(folder: Path) -> None:
        chain = reference()
        tensors: dict[str, Any] = {}
        metadata = []
        for i, (prompt, count, most) in enumerate(prompts()):
            answer = Answer(chain.embedding(prompt.ids), (), ()) if chain.embeds else None
            logits, tokens, leads = answer or chain.answer(prompt.ids, count)
            check_finite(logits, "the whole model", f"golden prompt {prompt.name!r}")
            check_finite(np.asarray(leads), "the whole model", f"the text after {prompt.name!r}")
            ids = prompt.ids
            if most:
                said, stops = [*tokens[:most]], {*ends()}
                while len(said) < most and stops.isdisjoint(said):
                    row = Decoder(chain, [*prompt.ids, *said]).logits()[0]
                    check_finite(row, "the whole model", f"the text after {prompt.name!r}")
                    said.append(likeliest_token(row))
                end = next((i for i, token in enumerate(said) if token in stops), most)
                ids += tuple(said[:end])
                logits = chain.logits(ids)
            tensors[f"{i}"] = logits
            about = [prompt.name, ids, tokens, leads, decode(tokens), len(ids) - len(prompt.ids)]
            metadata.append(about)
        save(folder, tensors, {"golden": metadata})

    tensors, metadata = load(cache.get_or_make("recordings", key_digest(key), make, name))
    return [
        GoldenPrompt(
            prompt, tuple(ids), tensors[f"{i}"], tuple(tokens), tuple(leads), text,
            answered=answered,
        )
        for i, (prompt, ids, tokens, leads, text, answered) in enumerate(metadata["golden"])
    ]  # fmt: skip


def reference_chain(model: LanguageModel, wiring: Sequence[Wire], *, lazy: bool = False) -> Chain:
    """The float32 modules of all shards as a chain.

    A `lazy` one holds the weights of one shard at a time. They are read whenever a step runs, so
    give it many sequences at once.
    """

    def step(wire: Wire) -> ChainStep:
        own = None if lazy else model.reference(wire.shard)

        def together(sequences: Sequence[FloatArray]) -> list[FloatArray]:
            return (own or model.reference(wire.shard))(sequences) if sequences else []

        return ChainStep(wire, lambda: lambda hidden: together([hidden])[0], together=together)

    embed = getattr(model, "reference_embed", model.embed)  # It may be left out.
    return Chain(embed, tuple(map(step, wiring)))


ReferenceStates: TypeAlias = Callable[[str, str], tuple[FloatArray, FloatArray]]
"""`states(prompt, shard)`: the reference's hidden states that enter and leave a block."""


def exact_chain(chain: Chain, reference: Chain, exact: Collection[str]) -> Chain:
    """`chain` with the steps of `reference` for the shards in `exact`; `ValueError` for others.

    A reference keeps no state, so an exact shard takes a sequence at once unless its positions
    do not see each other.
    """
    if [step.wire for step in chain.steps] != [step.wire for step in reference.steps]:
        raise ValueError("the chains are wired differently")
    if unknown := set(exact) - {step.shard for step in chain.steps}:
        raise ValueError(f"no shard {min(unknown)} in the chain")

    def choose(own: ChainStep, other: ChainStep) -> ChainStep:
        if own.shard not in exact:
            return own
        return replace(other, sees="itself" if own.sees == "itself" else "call")

    return replace(chain, steps=tuple(map(choose, chain.steps, reference.steps)))


@dataclass(frozen=True, eq=False)
class ForcedShard:
    """One shard on the reference's states of every golden prompt: none has another's error.

    `streams` are the reference's before the shard, `own` and `exact` outputs, float32 `[T, C]`;
    each by prompt.
    """

    step: ChainStep
    streams: list[Streams]
    own: list[FloatArray]
    exact: list[FloatArray]


def teacher_forced(
    chain: Chain, golden: Sequence[GoldenPrompt], states: ReferenceStates
) -> Iterator[ForcedShard]:
    """Every shard on recorded states, blocks first; no reference runs."""
    streams: list[Streams] = [{"x": chain.embed(prompt.ids)} for prompt in golden]
    for step in chain.blocks:
        exact = [states(prompt.name, step.shard)[1] for prompt in golden]
        yield ForcedShard(step, list(map(dict, streams)), _outputs(step, streams), exact)
        for stream, output in zip(streams, exact, strict=True):
            apply_output(stream, step.wire, output)
    start = 0
    for step in chain.steps:
        if step.wire.is_head:
            own = _outputs(step, streams)
            end = start + own[0].shape[1] if own else start
            exact = [prompt.logits[:, start:end] for prompt in golden]
            yield ForcedShard(step, list(map(dict, streams)), own, exact)
            start = end


@dataclass(frozen=True)
class Head:
    """The head on the reference's own last states, position 0 left out: its error alone.

    Whatever is worse in the whole stack comes from the blocks.
    """

    top1: float
    kl: float
    centred_cosine: float

    def __post_init__(self) -> None:
        if not (0 <= self.top1 <= 1 and is_cosine(self.centred_cosine)) or self.kl < -1e-6:
            raise ValueError("the head alone has a share, a divergence or a cosine that is none")


@dataclass(frozen=True)
class ShardAlone:
    """One shard under teacher forcing: on the reference's own states.

    Shards of one `kind` have errors of one size. The error is the relative L2 of what it
    contributes, over all positions but 0 (the attention sink of a causal shard, if there are
    others), or of its whole output where no residual path is known; the cosine is the lowest at a
    position, NaN where one is undefined.
    """

    shard: str
    kind: str
    error: float
    cosine: float

    def __post_init__(self) -> None:
        if not is_cosine(self.cosine) or self.error < 0:
            raise ValueError("a shard alone has a cosine or an error that is none")

    @property
    def undefined(self) -> bool:
        """Whether it gave NaN, or only zeros where the reference did not."""
        return math.isnan(self.cosine) or math.isnan(self.error)


def forced(
    chain: Chain, golden: Sequence[GoldenPrompt], states: ReferenceStates
) -> tuple[tuple[ShardAlone, ...], tuple[Head | None, ...]]:
    """Figures of every shard of a chain under teacher forcing, and of the heads by prompt.

    Shards that rightly give only zeros are left out; a prompt of one position has no head.
    """
    shards: list[ShardAlone] = []
    slices: list[list[FloatArray]] = [[] for _ in golden]
    for shard in teacher_forced(chain, golden, states):
        pairs = list(zip(shard.own, shard.exact, strict=True))
        cosines = np.concatenate([_cosines(own, exact) for own, exact in pairs] or [np.empty(0)])
        if len(cosines):
            wire, own = shard.step.wire, np.concatenate(shard.own)
            added = wire.mode == "add" or not (wire.is_head or wire.gives == "x")
            if added and np.isfinite(own).all() and own.any():
                # Where rounding decides who is chosen, a pack of experts may rightly give nothing.
                cosines = np.nan_to_num(cosines)
            error = _error_of_contribution(shard)
            shards.append(ShardAlone(wire.shard, wire.kind, error, float(cosines.min())))
        if shard.step.wire.is_head:
            for logits, own in zip(slices, shard.own, strict=True):
                logits.append(own)
    heads = (_head(prompt.logits, parts) for prompt, parts in zip(golden, slices, strict=True))
    return tuple(shards), tuple(heads)


@dataclass(frozen=True)
class StackState:
    """The hidden states after a shard of the stack as it is, against the reference's.

    `error` is relative L2 over all positions but the prompts' first ones, `cosine` the lowest of
    one: NaN where it is undefined, None where both sides are zero throughout.
    """

    shard: str
    error: float
    cosine: float | None

    def __post_init__(self) -> None:
        if self.error < 0 or not (self.cosine is None or is_cosine(self.cosine)):
            raise ValueError("a state of the stack has a cosine or an error that is none")


class StackDrift:
    """How far a chain's hidden states are from the reference's, while it answers prompts."""

    def __init__(self, chain: Chain, states: ReferenceStates) -> None:
        self._chain, self._states = chain, states
        self._sums: dict[str, tuple[float, float, float | None]] = {}

    def watching(self, prompt: GoldenPrompt) -> Watch:
        """What `Chain.answer` is to call for a prompt."""
        exact: Streams = {"x": self._chain.embed(prompt.ids)}

        def watch(wire: Wire, streams: Streams) -> None:
            apply_output(exact, wire, self._states(prompt.name, wire.shard)[1])
            if len(prompt.ids) < 2:
                return
            own, right = streams[wire.gives][1:], exact[wire.gives][1:]
            error, norm, lowest = self._sums.get(wire.shard, (0.0, 0.0, None))
            with np.errstate(invalid="ignore", over="ignore"):
                lost = float(np.linalg.norm(np.subtract(own, right, dtype=np.float64)))
            whole = float(np.linalg.norm(right.astype(np.float64)))
            if len(cosines := _cosines(own, right)):
                least = float(cosines.min())
                lowest = least if lowest is None else float(np.minimum(lowest, least))
            self._sums[wire.shard] = math.hypot(error, lost), math.hypot(norm, whole), lowest

        return watch

    @property
    def states(self) -> tuple[StackState, ...]:
        """Blocks in running order, over all prompts so far."""
        return tuple(
            StackState(shard, _relative(error, norm), lowest)
            for shard, (error, norm, lowest) in self._sums.items()
        )


def run_all(step: ChainStep, streams: Sequence[Streams]) -> None:
    """Let a shard take from and give to the streams of several sequences."""
    for stream, output in zip(streams, _outputs(step, streams), strict=True):
        apply_output(stream, step.wire, output)


def _outputs(step: ChainStep, streams: Sequence[Streams]) -> list[FloatArray]:
    return step.all([shard_input(stream, step.wire) for stream in streams])


def _head(expected: FloatArray, slices: Sequence[FloatArray]) -> Head | None:
    if not slices or len(expected) < 2:
        return None
    positions = compare_logits(expected, np.concatenate(slices, axis=1))[1:]
    summary = LogitSummary.of(positions)
    return Head(summary.top1, summary.kl, summary.centred_cosine.min)


def _error_of_contribution(shard: ForcedShard) -> float:
    """|own - exact| / |exact - residual|, Frobenius norms over the rows of all prompts."""
    entering = [shard_input(stream, shard.step.wire) for stream in shard.streams]
    paths = shard.step.residual(entering) or [np.float32(0)] * len(entering)
    first = int(shard.step.causal and any(len(rows) > 1 for rows in shard.exact))

    def norm(pairs: Iterable[tuple[FloatArray, FloatArray | np.float32]]) -> float:
        with np.errstate(invalid="ignore"):
            differences = [np.subtract(a, b, dtype=np.float64)[first:] for a, b in pairs]
        return math.hypot(*(float(np.linalg.norm(rows)) for rows in differences))

    error = norm(zip(shard.own, shard.exact, strict=True))
    contribution = norm(zip(shard.exact, paths, strict=True))
    return _relative(error, contribution)


def _relative(error: float, norm: float) -> float:
    """Without a norm infinite; 0 where there is no error either; NaN of NaN."""
    return error / norm if norm else math.inf if error > 0 else 0.0 * error


def _cosines(output: FloatArray, expected: FloatArray) -> DoubleArray:
    """By position, without those where both sides are zero, as experts are that nobody chose."""
    live = output.any(axis=1) | expected.any(axis=1)
    return cosine(output[live], expected[live])
