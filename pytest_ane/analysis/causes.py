"""What a drift says of the shards: whether one breaks the stack, or all wear it down."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_ane.analysis.drift import Drift
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.behaviour.judge import judge
from pytest_ane.gates.behaviour.measure import Behaviour
from pytest_ane.manifest import BehaviourPolicy


@dataclass(frozen=True)
class Part:
    """One shard's part in what is wrong.

    Attributes:
        kl: mean KL in nats of the stack in which it alone is no reference.
        share: of the sum of all shards' `kl`; NaN where that is not finite.
        breaks: whether that stack fails the policy.
    """

    shard: str
    kl: float
    share: float
    breaks: bool


@dataclass(frozen=True)
class Causes:
    """The policy applied to a drift; greedy text is left out.

    Attributes:
        stack: the verdict on the stack as it is, `reference` on the reference itself.
        parts: all shards, the worst first.
    """

    stack: Verdict
    reference: Verdict
    parts: tuple[Part, ...]

    @property
    def breaking(self) -> tuple[str, ...]:
        """Shards that fail the policy alone in an otherwise exact stack, the worst first."""
        return tuple(part.shard for part in self.parts if part.breaks)

    @property
    def shared(self) -> bool:
        """Whether the parts' shares are known: KL is finite, and not zero throughout."""
        return not any(math.isnan(part.share) for part in self.parts)

    @property
    def half(self) -> int:
        """How many shards make up half of the sum of KL; all where that is undefined."""
        reached = np.cumsum([part.share for part in self.parts]) >= 0.5
        return int(reached.argmax()) + 1 if reached.any() else len(self.parts)


def find_causes(drift: Drift, policy: BehaviourPolicy, model: str) -> Causes:
    """Judge the stack, the reference, and every shard alone."""
    policy = policy.model_copy(update={"min_greedy": 0})

    def judged(behaviour: Behaviour) -> Verdict:
        return judge(behaviour, policy, model)

    divergence = [mean_kl(one.end) for one in drift.shards]
    total = sum(divergence)
    parts = [
        Part(
            shard=one.shard,
            kl=kl,
            share=kl / total if total > 0 and math.isfinite(total) else math.nan,
            breaks=judged(one.end).status != "passed",
        )
        for one, kl in zip(drift.shards, divergence, strict=True)
    ]
    # An undefined KL is worse than any number.
    parts.sort(key=lambda part: -math.inf if math.isnan(part.kl) else -part.kl)
    return Causes(judged(drift.end), judged(drift.reference), tuple(parts))


def mean_kl(behaviour: Behaviour) -> float:
    """Mean KL in nats of all positions but the first of each prompt; NaN if there are none."""
    values = [p.kl for prompt in behaviour.prompts for p in prompt.positions[1:]]
    return max(float(np.mean(values)), 0.0) if values else math.nan
