"""A model as the behaviour gate takes it: all artifacts loaded and chained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ane.backends import Backend
from pytest_ane.behaviour import Chain, Golden
from pytest_ane.behaviour.chain import Run, Step
from pytest_ane.behaviour.exact import lazy_reference
from pytest_ane.build import Artifact
from pytest_ane.families import Layout, Wire
from pytest_ane.manifest import BehaviourPolicy, Shard
from pytest_ane.plugin.models import OpenModel
from pytest_ane.sources import FloatArray


class Stack:
    """What `gates/test_behaviour.py` measures and judges; opened when first asked for.

    Attributes:
        model: the model's name.
        policy: what it must reach.
        artifacts: every shard with its package, in the manifest's order.
    """

    def __init__(
        self, opened: OpenModel, artifacts: Sequence[tuple[Shard, Artifact]], backend: Backend
    ) -> None:
        self.model: str = opened.model.name
        self.policy: BehaviourPolicy = opened.model.policy.behaviour
        self.artifacts = tuple(artifacts)
        self._opened = opened
        self._backend = backend

    @cached_property
    def chain(self) -> Chain:
        """All artifacts, loaded and chained in running order."""
        self._opened.check_whole()
        model = self._opened.language_model
        by_id = {shard.id: artifact for shard, artifact in self.artifacts}
        limit = self._opened.model.max_tokens

        def step(wire: Wire) -> Step:
            layout = model.layout(wire.shard)
            return _step(wire, self._backend, by_id[wire.shard], layout, limit)

        steps = tuple(map(step, self._opened.wiring))
        return Chain(model.embed, steps, positions=model.positions, widest=limit)

    @cached_property
    def reference(self) -> Chain:
        """The float32 modules in the artifacts' place; weights of one shard at a time."""
        return lazy_reference(self._opened.language_model, self._opened.wiring)

    @property
    def golden(self) -> Sequence[Golden]:
        """What the reference says to the golden prompts."""
        return self._opened.golden

    def states(self, prompt: str, shard: str) -> tuple[FloatArray, FloatArray]:
        """The reference's hidden states of a prompt entering and leaving a block."""
        return self._opened.states(prompt, shard)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._opened.decode(ids)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The backend's, and every artifact's digest."""
        return self._backend.provenance() | {s.id: a.digest for s, a in self.artifacts}


def _step(wire: Wire, backend: Backend, artifact: Artifact, layout: Layout, limit: int) -> Step:
    """A shard that takes up to `limit` positions a call, as many calls as a sequence needs."""
    runner = backend.load(artifact.path)

    def open_sequence() -> Run:
        state, start = runner.make_state(), 0

        def run(hidden: FloatArray) -> FloatArray:
            nonlocal start
            parts = []
            for i in range(0, len(hidden), limit):
                inputs = layout.inputs(hidden[i : i + limit], start)
                parts.append(layout.output(runner.predict(inputs, state)))
                start += len(parts[-1])
            return np.concatenate(parts)

        return run

    return Step(wire, open_sequence, layout.sees)
