"""Does the whole stack still say the same? Golden prompts through every shard, and greedy text.

Of an encoder: embeddings of prompts and sentences, and how prompts rank the sentences.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_ane.gates.base import Environment, Gate, ModelContext
from pytest_ane.gates.behaviour._embeddings import LEAST
from pytest_ane.gates.behaviour.judge import figures, judge, limits
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult, measure
from pytest_ane.gates.verdict import Figure, Finding, Limits, Verdict, some
from pytest_ane.make import Artifact
from pytest_ane.manifest import Model, Prompt
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.models.families.registry import is_encoder

__all__ = ["BEHAVIOUR", "Behaviour", "PromptResult", "blind_spots", "judge", "measure"]

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


class BehaviourGate(Gate[Behaviour]):
    """Logits of golden prompts at every position, greedy text, and each shard alone."""

    name = "behaviour"
    answers = "right"
    scope = "model"
    measurement = Behaviour
    by_arithmetic = True

    def question(self, subject: Model, model: Model, source: Callable[[], str]) -> dict[str, Any]:
        """The golden prompts, and what the float32 reference is made of."""
        prompts = [prompt.question for prompt in model.prompts]
        ranked = {"sentences": list(model.sentences)} if model.sentences else {}
        return {"prompts": prompts, **ranked, "reference": "float32", "source": source()}

    def measure(self, context: ModelContext) -> Behaviour:
        """Run every golden prompt through the chain, and every shard alone."""
        states = context.states if context.has_states else None
        typed = context.typed if context.arithmetic == "ane" else None
        return measure(
            context.chain, context.golden, states, context.decode, context.provenance, typed,
            lambda: context.rules,
        )  # fmt: skip

    def judge(self, measurement: Behaviour, policy: BehaviourPolicy, subject: Model) -> Verdict:
        """Passed only if the reference is right and every threshold is kept."""
        expect = {prompt.name: prompt.expect for prompt in subject.prompts if prompt.expect}
        trained = subject.source is not None and not subject.source.synthetic
        verdict = judge(measurement, policy, subject.qualified, expect, trained=trained)
        if is_encoder(subject.family, subject.ids):
            return verdict
        spots = blind_spots(measurement, subject.prompts)
        return replace(verdict, findings=(*verdict.findings, *spots))

    def limits(self, policy: BehaviourPolicy, subject: Model) -> Limits:
        """Of logits, or of embeddings and rankings."""
        return limits(policy, encoder=is_encoder(subject.family, subject.ids))

    def figures(self, measurement: Behaviour) -> tuple[Figure, ...]:
        """Statistics of all positions but the prompts' first ones."""
        return figures(measurement)

    def lacks(
        self, measurement: Behaviour, subject: Model, place: Environment, artifact: Artifact | None
    ) -> Iterator[str]:
        """Golden prompts, positions and greedy tokens that were not measured."""
        if is_encoder(subject.family, subject.ids):
            yield from _lacks_embeddings(measurement, subject)
            return
        if measurement.embeddings is not None:  # They alone would be judged.
            yield "holds embeddings, of a model that gives logits"
        if measurement.vocabulary is None:
            yield "leaves out the vocabulary's size"
        measured = {prompt.name: prompt for prompt in measurement.prompts}
        if lost := sorted({prompt.name for prompt in subject.prompts} - measured.keys()):
            yield f"leaves out {', '.join(lost)}"
            return
        for own in subject.prompts:
            prompt, least = measured[own.name], len(own.ids or ("",))
            if (count := len(prompt.expected)) != own.greedy:
                yield f"has {count} of {own.greedy} greedy tokens of {own.name}"
            if (count := len(prompt.positions)) < least:
                yield f"has {count} of {least} positions of {own.name}"


def _lacks_embeddings(measurement: Behaviour, model: Model) -> Iterator[str]:
    if (embeddings := measurement.embeddings) is None:
        yield "holds no embeddings"
        return
    prompts = {prompt.name for prompt in model.prompts}
    count = len(model.sentences) or len(prompts) - 1
    ranked = {ranking.query for ranking in embeddings.rankings if len(ranking.expected) == count}
    if lost := {*prompts, *model.sentences} - {text.text for text in embeddings.texts}:
        yield f"leaves out {', '.join(sorted(lost))}"
    elif count >= LEAST and (unranked := prompts - ranked):
        yield f"ranks not all sentences for {', '.join(sorted(unranked))}"


def blind_spots(behaviour: Behaviour, prompts: Sequence[Prompt]) -> Iterator[Finding]:
    """Warnings of a set that is easy throughout, and of one with half its texts from others."""
    # Without the first positions, and prompts whose margins nobody measured.
    margins = (
        [p.margin for p in q.positions[1:] if p.margin is not None] for q in behaviour.prompts
    )
    medians = [statistics.median(each) for each in margins if each]
    if medians and min(medians) > EASY:
        leads = f"the reference leads by {min(medians):.1f} logits or more at half of their"
        reason = f"All golden prompts are easy: {leads} positions, where few faults change a token"
        yield Finding("warned", reason, remedy=_REMEDY)
    # As the manifest has it, so that no chat template counts.
    texts = [p.ids or " ".join((p.text or p.chat or "").lower().split()) for p in prompts]
    grams = [{t[i : i + _GRAM] for i in range(max(len(t) - _GRAM, 0) + 1)} for t in texts]
    again = [
        prompt.name
        for i, prompt in enumerate(prompts)
        if any(len(grams[i] & old) / len(grams[i] | old) >= ALIKE for old in grams[:i])
    ]
    if again and 2 * len(again) >= len(prompts):
        most = f"{len(again)} of {len(prompts)} golden prompts repeat most of an earlier one's text"
        reason = f"{most}, so they show the same faults: {some(map(repr, again), 3)}"
        yield Finding("warned", reason, remedy=_REMEDY)


BEHAVIOUR = BehaviourGate()
