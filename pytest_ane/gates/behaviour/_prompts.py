"""Warnings about golden prompts on which few faults show: all are easy, or most are one text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult
from pytest_ane.gates.verdict import Finding, some
from pytest_ane.manifest import Prompt

EASY = 2.0
"""Logits by which the reference leads at half of a prompt's positions that is easy.

A stack at the default `max-kl`, 0.05 nats, has logits of a deviation of sqrt(2 * 0.05) = 0.32 about
the reference's, as KL is half their variance where they are close; the difference of two has 0.45,
and hardly ever 2. On the default model texts and messages have medians of 0.4 to 1.5, code 2.5;
counting, months, JSON and tables 2.6 to 4.8."""

_GRAM = 5
"""Characters, or token ids, in a row that texts are compared by: longer than most words' ends."""
ALIKE = 0.3
"""Jaccard index of two texts' rows of five from which they are one text but for a few words. Pairs
of one sentence with another word in it have 0.39 to 0.65, those of `init`'s prompts up to 0.13."""

_REMEDY = "add ordinary texts unlike each other, and chat with the reference's answer: answer = 24"


def blind_spots(behaviour: Behaviour, prompts: Sequence[Prompt]) -> Iterator[Finding]:
    """Warnings of a set that is easy throughout, and of one with half its texts from others."""
    medians = [median for prompt in behaviour.prompts if (median := _median(prompt)) is not None]
    if medians and min(medians) > EASY:
        reason = (
            f"All golden prompts are easy: the reference leads by {min(medians):.1f} logits or "
            "more at half of their positions, where few faults change a token"
        )
        yield Finding("warned", reason, remedy=_REMEDY)
    grams = [_grams(prompt) for prompt in prompts]
    again = [
        prompt.name
        for i, prompt in enumerate(prompts)
        if any(_jaccard(grams[i], earlier) >= ALIKE for earlier in grams[:i])
    ]
    if again and 2 * len(again) >= len(prompts):
        reason = (
            f"{len(again)} of {len(prompts)} golden prompts repeat most of an earlier one's text, "
            f"so they show the same faults: {some(map(repr, again), 3)}"
        )
        yield Finding("warned", reason, remedy=_REMEDY)


def _median(prompt: PromptResult) -> float | None:
    """Of the reference's margins, the first position left out; None where nobody measured them."""
    margins = [p.margin for p in prompt.positions[1:] if p.margin is not None]
    return statistics.median(margins) if margins else None


def _grams(prompt: Prompt) -> set[tuple[object, ...]]:
    """Rows of five of the text as the manifest has it, so that no chat template counts."""
    text = prompt.ids or " ".join((prompt.text or prompt.chat or "").lower().split())
    return {tuple(text[i : i + _GRAM]) for i in range(max(len(text) - _GRAM, 0) + 1)}


def _jaccard(a: set[tuple[object, ...]], b: set[tuple[object, ...]]) -> float:
    return len(a & b) / len(a | b)
