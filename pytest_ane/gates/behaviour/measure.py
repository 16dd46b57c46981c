"""The behaviour measurement: a chain of artifacts against the recorded reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pytest_ane.gates.behaviour._embeddings import Embeddings, measure_embeddings
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.metrics.logits import (
    Likeliest,
    LogitSummary,
    Position,
    compare_logits,
    likeliest,
)
from pytest_ane.mlprogram.metrics.tensors import cosine
from pytest_ane.models.chain import NO_TOKEN, Answer, Chain
from pytest_ane.probes.exact_chain import (
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
        counts = [len(each) for each in (self.greedy, self.expected, self.leads)]
        if len({*counts}) > 1:
            raise ValueError("{} greedy tokens, {} expected ones and {} leads".format(*counts))
        if any(lead < 0 for lead in self.leads):
            raise ValueError("a lead is negative")
        every = len(self.positions)
        for what, told in (("tokens", self.likeliest), ("texts", self.pieces)):
            if told and len(told) != every:
                raise ValueError(f"{len(told)} of {every} positions have {what}")

    @property
    def agreed(self) -> int:
        """Greedy tokens equal before the first difference."""
        for i, (a, b) in enumerate(zip(self.greedy, self.expected, strict=True)):
            if a != b or a == NO_TOKEN:
                return i
        return len(self.expected)


@dataclass(frozen=True)
class Behaviour:
    """All prompts, and each shard alone on the reference's own states.

    Attributes:
        alone: shards in running order; not one that rightly gives nothing but zeros.
        vocabulary: tokens that there are; None where that was not measured.
        embeddings: of an encoder, which has no prompts above.
        drift: hidden states of the stack as it is after each block, in running order; none where
            the reference does not tell its own.
        arithmetic: in which the shards ran; a device's own counts as `typed`.
        costs: how far that is from the shards as typed, by name: mean KL(typed || ane) in nats
            (`kl`) and the share of positions with the same likeliest token (`top1`), without the
            prompts' first positions; of an encoder the lowest cosine of two embeddings (`cosine`).
        rules: by which rules of the ANE the shards computed.
    """

    prompts: tuple[PromptResult, ...]
    alone: tuple[ShardAlone, ...]
    provenance: Mapping[str, Any]
    vocabulary: int | None = None
    embeddings: Embeddings | None = None
    drift: tuple[StackState, ...] = ()
    arithmetic: Arithmetic = "typed"
    costs: Mapping[str, float] = field(default_factory=dict)
    rules: RuleShares = field(default_factory=RuleShares)


def measure(
    chain: Chain, golden: Sequence[GoldenPrompt], states: ReferenceStates | None,
    decode: Callable[[Sequence[int]], str], provenance: Mapping[str, Any],
    typed: Chain | None = None, rules: Callable[[], RuleShares] = RuleShares,
) -> Behaviour:  # fmt: skip
    """Run every golden prompt through the chain, and every shard alone.

    Arguments are as of a `ModelContext`: `states` is None where nobody knows them, and `typed`
    where `chain` computes as typed itself.
    """
    costs: dict[str, float] = {}
    if chain.embeds:
        embeddings, own = measure_embeddings(chain, golden, states)
        if typed is not None:
            pairs = zip(own, (typed.embedding(g.ids) for g in golden), strict=True)
            cosines = [cosine(a, b)[0] for a, b in pairs]
            costs = {"cosine": float(np.min(cosines, initial=1.0))}  # NaN if any is.
        measured = Behaviour((), (), dict(provenance), embeddings=embeddings)
    else:
        answers, prompts, alone, drift = _run(chain, golden, states, decode)
        if typed is not None:
            positions = [
                position
                for g, answer in zip(golden, answers, strict=True)
                for position in compare_logits(typed.logits(g.ids), answer.logits, g.ids)[1:]
            ]
            if positions:
                summary = LogitSummary.of(positions)
                costs = {"kl": summary.kl, "top1": summary.top1}
        vocabulary = golden[0].logits.shape[1] if golden else None
        measured = Behaviour(prompts, alone, dict(provenance), vocabulary, drift=drift)
    if typed is None:
        return measured
    return replace(measured, costs=costs, arithmetic="ane", rules=rules())


def _run(
    chain: Chain,
    golden: Sequence[GoldenPrompt],
    states: ReferenceStates | None,
    decode: Callable[[Sequence[int]], str],
) -> tuple[list[Answer], tuple[PromptResult, ...], tuple[ShardAlone, ...], tuple[StackState, ...]]:
    alone, heads = forced(chain, golden, states) if states else ((), (None,) * len(golden))
    drift = StackDrift(chain, states) if states else None
    answers = [
        chain.answer(
            g.ids, len(g.greedy), g.continuation, drift.watching(g) if drift else None,
            len(g.prompt),
        )
        for g in golden
    ]  # fmt: skip
    prompts = []
    for g, answer, head in zip(golden, answers, heads, strict=True):
        positions, spoken = compare_logits(g.logits, answer.logits, g.prompt), answer.tokens
        text = decode([token for token in spoken if token != NO_TOKEN])
        own = (g.name, positions, spoken, g.greedy, g.leads, text, g.text)
        pieces = tuple(_pieces(g.ids, decode))
        prompts.append(PromptResult(*own, likeliest(answer.logits), head, pieces))
    return answers, tuple(prompts), alone, drift.states if drift else ()


def _pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """The text of each token, with the space that some tokenizers write after another one alone."""
    for before, own in zip((None, *ids), ids, strict=False):
        pair, first = ("", "") if before is None else (decode([before, own]), decode([before]))
        yield pair.removeprefix(first) if first and pair.startswith(first) else decode([own])
