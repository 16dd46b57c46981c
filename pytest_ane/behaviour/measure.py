"""The behaviour measurement: a chain of artifacts against the recorded reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.behaviour.chain import Chain, Step
from pytest_ane.behaviour.golden import Golden
from pytest_ane.behaviour.statistics import Likeliest, Position, compare, likeliest
from pytest_ane.fidelity.metrics import cosine, is_cosine
from pytest_ane.sources import FloatArray


@dataclass(frozen=True)
class PromptResult:
    """One golden prompt: statistics of every position, and the greedy continuation.

    Attributes:
        greedy: tokens of the shards; `expected` those of the reference, `leads` its certainty.
        likeliest: the shards' likeliest tokens by position; the verdict does not depend on them.
    """

    name: str
    positions: tuple[Position, ...]
    greedy: tuple[int, ...]
    expected: tuple[int, ...]
    leads: tuple[float, ...]
    text: str
    expected_text: str
    likeliest: tuple[Likeliest, ...] = ()

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
            if a != b:
                return i
        return len(self.expected)


@dataclass(frozen=True)
class Behaviour:
    """All prompts, and each shard alone: its lowest cosine on the reference's own states.

    A shard that rightly gives nothing but zeros is not in `alone`.
    """

    prompts: tuple[PromptResult, ...]
    alone: tuple[tuple[str, float], ...]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not all(is_cosine(value) for _, value in self.alone):
            raise ValueError("a cosine of a shard alone is neither in -1..1 nor NaN")


def measure(
    chain: Chain,
    golden: Sequence[Golden],
    states: Callable[[str, str], tuple[FloatArray, FloatArray]],
    decode: Callable[[Sequence[int]], str],
    provenance: Mapping[str, Any],
) -> Behaviour:
    """Run every golden prompt through the chain, and every block alone.

    `states(prompt, shard)` gives the reference's hidden states that enter and leave a block,
    `decode` the text of token ids.
    """
    prompts = tuple(_run(chain, g, decode) for g in golden)
    names = [g.name for g in golden]
    lowest = {
        step.shard: _alone(step, [states(name, step.shard) for name in names])
        for step in chain.blocks
    }
    alone = tuple((shard, value) for shard, value in lowest.items() if value is not None)
    return Behaviour(prompts, alone, dict(provenance))


def _run(chain: Chain, golden: Golden, decode: Callable[[Sequence[int]], str]) -> PromptResult:
    tokens, _ = chain.greedy(golden.ids, len(golden.greedy))
    logits = chain.logits(golden.ids)
    return PromptResult(
        name=golden.name,
        positions=compare(golden.logits, logits),
        greedy=tokens,
        expected=golden.greedy,
        leads=golden.leads,
        text=decode(tokens),
        expected_text=golden.text,
        likeliest=likeliest(logits),
    )


def _alone(step: Step, pairs: list[tuple[FloatArray, FloatArray]]) -> float | None:
    """Lowest cosine of a position; NaN, which `min` of numpy propagates, is worst of all.

    Where both sides are zero, as a pack of experts is that none was chosen of, they agree and
    there is nothing to compare; None where that is so at every position.
    """
    found = []
    for before, after in pairs:
        output = step.open()(before)
        live = output.any(axis=1) | after.any(axis=1)
        found.append(cosine(output[live], after[live]))
    cosines = np.concatenate(found)
    return float(cosines.min()) if len(cosines) else None
