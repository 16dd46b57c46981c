"""Does the whole stack still say the same? Golden prompts through every shard, and greedy text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_ane.core.verdict import Figure, Verdict
from pytest_ane.gates.base import Gate, ModelContext, Subject
from pytest_ane.gates.behaviour.judge import figures, judge
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult, measure
from pytest_ane.manifest import Model
from pytest_ane.manifest.policy import BehaviourPolicy

__all__ = ["BEHAVIOUR", "Behaviour", "PromptResult", "judge", "measure"]


class BehaviourGate(Gate[Behaviour]):
    """Logits of golden prompts at every position, greedy text, and each shard alone."""

    name = "behaviour"
    scope = "model"
    measurement = Behaviour
    fixtures = ("chain", "evidence", "gate")

    def question(self, subject: Subject, model: Model, source: Callable[[], str]) -> dict[str, Any]:
        """The golden prompts, and what the float32 reference is made of."""
        prompts = [prompt.question for prompt in model.prompts]
        return {"prompts": prompts, "reference": "float32", "source": source()}

    def measure(self, context: ModelContext) -> Behaviour:
        """Run every golden prompt through the chain, and every shard alone."""
        states = context.states if context.has_states else None
        return measure(
            context.chain,
            context.golden,
            states,
            context.decode,
            context.provenance,
            context.simulated,
            lambda: context.rules,
        )

    def judge(self, measurement: Behaviour, policy: BehaviourPolicy, subject: Subject) -> Verdict:
        """Passed only if the reference is right and every threshold is kept."""
        assert isinstance(subject, Model)
        expect = {prompt.name: prompt.expect for prompt in subject.prompts if prompt.expect}
        trained = subject.source is not None and not subject.source.synthetic
        return judge(
            measurement,
            policy,
            subject.qualified,
            expect,
            trained=trained,
            arithmetic=subject.arithmetic,
        )

    def figures(self, measurement: Behaviour) -> tuple[Figure, ...]:
        """Statistics of all positions but the prompts' first ones."""
        return figures(measurement)

    def lacks(
        self,
        measurement: Behaviour,
        subject: Subject,
        environment: Mapping[str, str],
        artifact: Path | None,
    ) -> Iterator[str]:
        """Golden prompts, positions and greedy tokens that were not measured."""
        assert isinstance(subject, Model)
        if measurement.vocabulary is None:
            yield "leaves out the vocabulary's size"
        measured = {prompt.name: prompt for prompt in measurement.prompts}
        if lost := sorted({prompt.name for prompt in subject.prompts} - measured.keys()):
            yield f"leaves out {', '.join(lost)}"
            return
        for asked in subject.prompts:
            prompt = measured[asked.name]
            if len(prompt.expected) != asked.greedy:
                tokens = f"{len(prompt.expected)} of {asked.greedy} greedy tokens"
                yield f"has {tokens} of {asked.name}"
            least = len(asked.ids) if asked.ids is not None else 1
            if len(prompt.positions) < least:
                yield f"has {len(prompt.positions)} of {least} positions of {asked.name}"


BEHAVIOUR = BehaviourGate()
