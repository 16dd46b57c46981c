"""The behaviour measurement: a chain of artifacts against the recorded reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ane.gates.behaviour.embeddings import (
    Embeddings,
    SimulatedEmbeddings,
    measure_embeddings,
    simulate_embeddings,
)
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.metrics.logits import (
    Likeliest,
    LogitSummary,
    Position,
    compare_logits,
    likeliest,
)
from pytest_ane.models.chain import NO_TOKEN, Answer, Chain
from pytest_ane.probes.exact_chain import (
    Forced,
    GoldenPrompt,
    Head,
    ReferenceStates,
    ShardAlone,
    StackDrift,
    StackState,
    forced,
)


@dataclass(frozen=True)
class PromptResult:
    """One golden prompt: statistics of every position, and the greedy continuation.

    Attributes:
        greedy: tokens of the shards, `NO_TOKEN` from where logits are not finite; `expected` those
            of the reference, `leads` its certainty.
        likeliest: the shards' likeliest tokens by position; the verdict does not depend on them.
        head: the head alone; None where it was not measured.
        pieces: the text of each token of the prompt; U+FFFD where it is a part of a character.
    """

    name: str
    positions: tuple[Position, ...]
    greedy: tuple[int, ...]
    expected: tuple[int, ...]
    leads: tuple[float, ...]
    text: str
    expected_text: str
    likeliest: tuple[Likeliest, ...] = ()
    head: Head | None = None
    pieces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.greedy) == len(self.expected) == len(self.leads):
            raise ValueError(
                f"{len(self.greedy)} greedy tokens, {len(self.expected)} expected ones and "
                f"{len(self.leads)} leads are no match"
            )
        if any(lead < 0 for lead in self.leads):
            raise ValueError("a lead is negative")
        if self.likeliest and len(self.likeliest) != len(self.positions):
            raise ValueError(
                f"{len(self.likeliest)} of {len(self.positions)} positions have tokens"
            )
        if self.pieces and len(self.pieces) != len(self.positions):
            raise ValueError(f"{len(self.pieces)} of {len(self.positions)} positions have texts")

    @property
    def agreed(self) -> int:
        """Greedy tokens equal before the first difference."""
        for i, (a, b) in enumerate(zip(self.greedy, self.expected, strict=True)):
            if a != b or a == NO_TOKEN:
                return i
        return len(self.expected)


@dataclass(frozen=True)
class Simulated:
    """The same on the executor in the ANE's arithmetic (h16+).

    Attributes:
        prompts, alone, drift: as of the run in the program's own types.
        kl: mean KL(typed || ane) in nats over all positions but the prompts' first ones: what the
            ANE's arithmetic itself costs.
        top1: share of these positions with the same likeliest token as typed.
        rules: by which rules it computed.
    """

    prompts: tuple[PromptResult, ...]
    alone: tuple[ShardAlone, ...]
    kl: float
    top1: float
    rules: RuleShares = field(default_factory=RuleShares)
    drift: tuple[StackState, ...] = ()


@dataclass(frozen=True)
class Behaviour:
    """All prompts, and each shard alone on the reference's own states.

    Attributes:
        alone: shards in running order; not one that rightly gives nothing but zeros.
        vocabulary: tokens that there are; None where that was not measured.
        ane: the same in the ANE's arithmetic; None where it was not asked for, or a device ran it.
        embeddings: of an encoder, which has no prompts above; `ane_embeddings` as `ane`.
        drift: hidden states of the stack as it is after each block, in running order; none where
            the reference does not tell its own.
    """

    prompts: tuple[PromptResult, ...]
    alone: tuple[ShardAlone, ...]
    provenance: Mapping[str, Any]
    vocabulary: int | None = None
    ane: Simulated | None = None
    embeddings: Embeddings | None = None
    ane_embeddings: SimulatedEmbeddings | None = None
    drift: tuple[StackState, ...] = ()


def measure(
    chain: Chain,
    golden: Sequence[GoldenPrompt],
    states: ReferenceStates | None,
    decode: Callable[[Sequence[int]], str],
    provenance: Mapping[str, Any],
    simulated: Chain | None = None,
    rules: Callable[[], RuleShares] = RuleShares,
) -> Behaviour:
    """Run every golden prompt through the chain, and every shard alone.

    Args:
        chain: the artifacts.
        golden: what the reference says to the prompts.
        states: the reference's hidden states, for shards alone; None where nobody knows them.
        decode: spells token ids.
        provenance: of the measurement.
        simulated: the same artifacts in the ANE's arithmetic, where that is asked for.
        rules: tells, after they ran, by which rules these computed.
    """
    if chain.embeds:
        embeddings, own = measure_embeddings(chain, golden, states)
        ane_embeddings = None
        if simulated is not None:
            ane_embeddings = simulate_embeddings(simulated, golden, states, own, rules)
        return Behaviour(
            (), (), dict(provenance), embeddings=embeddings, ane_embeddings=ane_embeddings
        )
    answers, prompts, alone, drift = _run(chain, golden, states, decode)
    ane = None
    if simulated is not None:
        theirs, ane_prompts, ane_alone, ane_drift = _run(simulated, golden, states, decode)
        kl, top1 = _engine(golden, answers, theirs)
        ane = Simulated(ane_prompts, ane_alone, kl, top1, rules(), ane_drift)
    vocabulary = golden[0].logits.shape[1] if golden else None
    return Behaviour(prompts, alone, dict(provenance), vocabulary, ane, drift=drift)


def _run(
    chain: Chain,
    golden: Sequence[GoldenPrompt],
    states: ReferenceStates | None,
    decode: Callable[[Sequence[int]], str],
) -> tuple[list[Answer], tuple[PromptResult, ...], tuple[ShardAlone, ...], tuple[StackState, ...]]:
    """Answers to all prompts, what they come to, the shards alone, and the drift along them."""
    alone = forced(chain, golden, states) if states else Forced((), (None,) * len(golden))
    drift = StackDrift(chain, states) if states else None
    answers = [
        chain.answer(g.ids, len(g.greedy), g.greedy, drift.watching(g) if drift else None)
        for g in golden
    ]
    triples = zip(golden, answers, alone.heads, strict=True)
    prompts = tuple(_result(*triple, decode) for triple in triples)
    return answers, prompts, alone.shards, drift.states if drift else ()


def _engine(
    golden: Sequence[GoldenPrompt], typed: Sequence[Answer], ane: Sequence[Answer]
) -> tuple[float, float]:
    """Mean KL(typed || ane), and the share of positions with the same likeliest token."""
    positions = [
        position
        for prompt, a, b in zip(golden, typed, ane, strict=True)
        for position in compare_logits(a.logits, b.logits, prompt.ids)[1:]
    ]
    if not positions:
        return 0.0, 1.0
    summary = LogitSummary.of(positions)
    return summary.kl, summary.top1


def _result(
    golden: GoldenPrompt,
    answer: Answer,
    head: Head | None,
    decode: Callable[[Sequence[int]], str],
) -> PromptResult:
    logits, tokens, _ = answer
    return PromptResult(
        name=golden.name,
        positions=compare_logits(golden.logits, logits, golden.ids),
        greedy=tokens,
        expected=golden.greedy,
        leads=golden.leads,
        text=decode([token for token in tokens if token != NO_TOKEN]),
        expected_text=golden.text,
        likeliest=likeliest(logits),
        head=head,
        pieces=tuple(_pieces(golden.ids, decode)),
    )


def _pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """The text of each token, with the space that some tokenizers write after another one alone."""
    for before, own in zip((None, *ids), ids, strict=False):
        pair, first = ("", "") if before is None else (decode([before, own]), decode([before]))
        yield pair.removeprefix(first) if first and pair.startswith(first) else decode([own])
