"""Positions of golden prompts: which are bad, and all of them as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.gates.verdict import Column, Table, rounded
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.metrics.logits import Position

TIE = 0.5
"""A difference counts as a tie where the reference led by fewer logits than this."""


def is_bad(p: Position, policy: BehaviourPolicy) -> bool:
    """Whether a position is undefined, or below the minimum, or predicts another token.

    Another token is no fault where the reference's margin is that of a tie; NaN is no tie.
    """
    tie = p.margin is not None and p.margin < TIE
    good = p.defined and p.centred_cosine >= policy.min_centred_cosine and (p.top1 or tie)
    return not good


def first_bad(
    prompts: Sequence[PromptResult], policy: BehaviourPolicy
) -> tuple[PromptResult, int] | None:
    """The first bad position in the prompts' order; position 0 only where it is undefined."""
    for prompt in prompts:
        for i, p in enumerate(prompt.positions):
            if _counts_as_bad(p, i, policy):
                return prompt, i
    return None


def positions_table(prompts: Sequence[PromptResult], policy: BehaviourPolicy) -> Table:
    """Every position of every prompt, with the text of its own token."""
    rows = [
        (
            prompt.name,
            i,
            prompt.pieces[i] if prompt.pieces else None,
            rounded(p.kl),
            "yes" if p.top1 else "no",
            rounded(p.centred_cosine),
            "yes" if _counts_as_bad(p, i, policy) else "no",
        )
        for prompt in prompts
        for i, p in enumerate(prompt.positions)
    ]
    heads = ("prompt", "position", "text", "KL", "top-1", "centred cosine", "bad")
    columns = tuple(Column(head, "nats" if head == "KL" else "") for head in heads)
    return Table("positions", columns, tuple(rows), "positions", listed=False)


def _counts_as_bad(p: Position, i: int, policy: BehaviourPolicy) -> bool:
    """Position 0 attends to itself alone, and is bad only where it is undefined."""
    return is_bad(p, policy) if i else not p.defined
