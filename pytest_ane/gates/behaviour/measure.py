"""The behaviour measurement: a chain of artifacts against the recorded reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ane.chain.chain import NO_TOKEN, Chain
from pytest_ane.chain.exact import Forced, Head, ReferenceStates, ShardAlone, forced
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.metrics.logits import Likeliest, Position, compare_logits, likeliest


@dataclass(frozen=True)
class PromptResult:
    """One golden prompt: statistics of every position, and the greedy continuation.

    Attributes:
        greedy: tokens of the shards, `NO_TOKEN` from where logits are not finite; `expected` those
            of the reference, `leads` its certainty.
        likeliest: the shards' likeliest tokens by position; the verdict does not depend on them.
        head: the head alone; None where it was not measured.
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
    """

    prompts: tuple[PromptResult, ...]
    alone: tuple[ShardAlone, ...]
    provenance: Mapping[str, Any]
    vocabulary: int | None = None


def measure(
    chain: Chain,
    golden: Sequence[GoldenPrompt],
    states: ReferenceStates | None,
    decode: Callable[[Sequence[int]], str],
    provenance: Mapping[str, Any],
) -> Behaviour:
    """Run every golden prompt through the chain, and every shard alone; `decode` spells ids."""
    alone = forced(chain, golden, states) if states else Forced((), (None,) * len(golden))
    prompts = (_run(chain, g, head, decode) for g, head in zip(golden, alone.heads, strict=True))
    vocabulary = golden[0].logits.shape[1] if golden else None
    return Behaviour(tuple(prompts), alone.shards, dict(provenance), vocabulary)


def _run(
    chain: Chain, golden: GoldenPrompt, head: Head | None, decode: Callable[[Sequence[int]], str]
) -> PromptResult:
    logits, tokens, _ = chain.answer(golden.ids, len(golden.greedy), golden.greedy)
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
    )
