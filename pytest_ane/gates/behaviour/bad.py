"""Which positions, prompts and shards are bad, by a policy."""

from __future__ import annotations

import math

from pytest_ane.chain.chain import NO_TOKEN
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult
from pytest_ane.manifest import BehaviourPolicy
from pytest_ane.metrics.logits import Position


def is_bad(p: Position, policy: BehaviourPolicy) -> bool:
    """Whether a position is undefined, too far off, or names another token though no tie is near.

    A margin that is not known or NaN is no tie.
    """
    tie = p.margin is not None and p.margin < policy.tie_margin
    return not (
        p.defined and p.centred_cosine >= policy.min_centred_cosine and (p.top1 or tie)
    )  # fmt: skip


def first_bad(behaviour: Behaviour, policy: BehaviourPolicy) -> tuple[PromptResult, int] | None:
    """The first bad position in the prompts' order; position 0 only where it is undefined."""
    for prompt in behaviour.prompts:
        for i, p in enumerate(prompt.positions):
            if is_bad(p, policy) if i else not p.defined:
                return prompt, i
    return None


def is_tie(prompt: PromptResult, policy: BehaviourPolicy) -> bool:
    """Whether the reference was undecided where the greedy texts part; NaN is no other text."""
    finite = prompt.greedy[prompt.agreed] != NO_TOKEN
    return finite and prompt.leads[prompt.agreed] < policy.tie_margin


def unchanged(prompt: PromptResult, policy: BehaviourPolicy) -> bool:
    """Whether a prompt has no bad position, and no other greedy text but by a tie."""
    same = prompt.agreed == len(prompt.expected) or is_tie(prompt, policy)
    return same and first_bad(Behaviour((prompt,), (), {}), policy) is None


def weakest_first(behaviour: Behaviour) -> list[tuple[str, float]]:
    """Shards alone, lowest cosine first; an undefined one is worse than any number."""
    return sorted(behaviour.alone, key=lambda pair: -2.0 if math.isnan(pair[1]) else pair[1])
