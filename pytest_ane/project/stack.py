"""A model as the behaviour gate takes it: all artifacts loaded and chained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pytest_ane.backends import Backend, Runner
from pytest_ane.build import Artifact
from pytest_ane.chain.chain import Chain, ChainStep
from pytest_ane.chain.exact import lazy_reference
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import Layout, Wire, recurrent_of, residual_of
from pytest_ane.manifest import Shard
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.probes.recording import TokenPrompt
from pytest_ane.project.models import OpenModel


class Stack:
    """A whole model as the behaviour gate measures it; opened when first used.

    Attributes:
        model: the model's name.
        subject: the model as the manifest has it.
        policy: what it must reach.
        artifacts: every shard with its package, in the manifest's order.
    """

    def __init__(
        self, opened: OpenModel, artifacts: Sequence[tuple[Shard, Artifact]], backend: Backend
    ) -> None:
        self.model: str = opened.model.name
        self.subject = opened.model
        self.policy: BehaviourPolicy = opened.model.policy.behaviour
        self.artifacts = tuple(artifacts)
        self._opened = opened
        self._backend = backend

    @cached_property
    def chain(self) -> Chain:
        """All artifacts, loaded and chained in running order."""
        self._opened.check_whole()
        model = self._opened.language_model
        by_id = {shard.id: (a.path, shard.function) for shard, a in self.artifacts}
        limit = self._opened.model.max_tokens

        def step(wire: Wire) -> ChainStep:
            layout = model.layout(wire.shard)

            def residual(hidden: Sequence[FloatArray]) -> list[FloatArray] | None:
                path = residual_of(model, wire.shard)
                return path(hidden) if path is not None else None

            step = _step(wire, self._backend.load(*by_id[wire.shard]), layout, limit)
            return replace(step, residual=residual)

        steps = tuple(map(step, self._opened.wiring))
        return Chain(model.embed, steps, positions=model.positions, widest=limit)

    @cached_property
    def reference(self) -> Chain:
        """The float32 modules in the artifacts' place; weights of one shard at a time."""
        return lazy_reference(self._opened.language_model, self._opened.wiring)

    @property
    def golden(self) -> Sequence[GoldenPrompt]:
        """The reference's logits and greedy text for the golden prompts."""
        return self._opened.golden

    @property
    def prompts(self) -> Sequence[TokenPrompt]:
        """The golden prompts as token ids; no reference runs."""
        return self._opened.prompts

    def states(self, prompt: str, shard: str) -> tuple[FloatArray, FloatArray]:
        """The reference's hidden states of a prompt entering and leaving a block."""
        return self._opened.states(prompt, shard)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return list(self._opened.tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._opened.decode(ids)

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The backend's, and every artifact's digest."""
        return self._backend.provenance() | {s.id: a.digest for s, a in self.artifacts}


def _step(wire: Wire, runner: Runner, layout: Layout, limit: int) -> ChainStep:
    """A shard that takes up to `limit` positions a call, as many calls as a sequence needs."""
    return ChainStep(wire, lambda: ShardSequence(runner, layout, limit), layout.sees)


class ShardSequence:
    """A sequence through one shard, from position 0 on; `chain.chain.Rewinding`.

    Going back is an earlier `start` for a key-value cache. Recurrent states are copied with every
    mark, and what is kept runs through this shard again.

    Args:
        limit: the largest T of a call.
    """

    def __init__(self, runner: Runner, layout: Layout, limit: int) -> None:
        self._runner, self._layout, self._limit = runner, layout, limit
        self._state, self._start = runner.make_state(), 0
        self._latest: FloatArray | None = None

    def __call__(self, hidden: FloatArray) -> FloatArray:
        """The next positions `[T, C]`, in as many calls as they need."""
        parts = []
        for i in range(0, len(hidden), self._limit):
            inputs = self._layout.inputs(hidden[i : i + self._limit], self._start)
            parts.append(self._layout.output(self._runner.predict(inputs, self._state)))
            self._start += len(parts[-1])
        self._latest = hidden
        return np.concatenate(parts)

    def mark(self) -> Mark:
        """Save the current position, with copies of the recurrent states."""
        names = recurrent_of(self._layout)
        return Mark(self._start, self._runner.read_states(self._state, names))

    def back(self, mark: Mark, keep: int = 0) -> None:
        """Restore the state saved by `mark`, keeping the first `keep` positions run since."""
        self._start = mark.start
        self._runner.write_states(self._state, mark.states)
        if keep and mark.states:
            assert self._latest is not None
            self(self._latest[:keep])
        else:
            self._start += keep


class Mark(NamedTuple):
    """A position, and the recurrent states before it by name."""

    start: int
    states: Mapping[str, Any]
