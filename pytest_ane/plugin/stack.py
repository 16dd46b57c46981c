"""A model as the behaviour gate takes it: all artifacts loaded and chained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.backends import Backend
from pytest_ane.behaviour import Chain, Golden
from pytest_ane.behaviour.chain import Run, Step
from pytest_ane.build import Artifact
from pytest_ane.families import Layout, Wire
from pytest_ane.manifest import BehaviourPolicy, Shard
from pytest_ane.plugin.models import OpenModel
from pytest_ane.sources import FloatArray


@dataclass(frozen=True)
class Stack:
    """What `gates/test_behaviour.py` measures and judges."""

    model: str
    chain: Chain
    golden: Sequence[Golden]
    states: Callable[[str, str], tuple[FloatArray, FloatArray]]
    decode: Callable[[Sequence[int]], str]
    policy: BehaviourPolicy
    provenance: Mapping[str, Any]


def open_stack(
    opened: OpenModel, artifacts: Sequence[tuple[Shard, Artifact]], backend: Backend
) -> Stack:
    """Load every artifact and chain them in running order."""
    opened.check_whole()
    model = opened.language_model
    paths = {shard.id: artifact for shard, artifact in artifacts}

    def step(wire: Wire) -> Step:
        limit = opened.model.max_tokens
        return _step(wire, backend, paths[wire.shard], model.layout(wire.shard), limit)

    return Stack(
        model=opened.model.name,
        chain=Chain(model.embed, tuple(map(step, opened.wiring))),
        golden=opened.golden,
        states=opened.states,
        decode=opened.decode,
        policy=opened.model.policy.behaviour,
        provenance=backend.provenance() | {s: a.digest for s, a in paths.items()},
    )


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
