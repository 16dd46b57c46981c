"""A model as the behaviour gate takes it: all artifacts loaded and chained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ane.backends import Backend
from pytest_ane.behaviour import Chain, Golden
from pytest_ane.behaviour.chain import Step
from pytest_ane.build import Artifact
from pytest_ane.families import Layout
from pytest_ane.manifest import BehaviourPolicy, Shard
from pytest_ane.plugin.models import OpenModel
from pytest_ane.sources import FloatArray


@dataclass(frozen=True)
class Stack:
    """What `gates/test_behaviour.py` measures and judges."""

    model: str
    chain: Chain
    golden: Sequence[Golden]
    states: Callable[[str, int], FloatArray]
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

    def steps(shards: Sequence[str]) -> tuple[tuple[str, Step], ...]:
        return tuple((s, _step(backend, paths[s], model.layout)) for s in shards)

    blocks, heads = opened.chain
    return Stack(
        model=opened.model.name,
        chain=Chain(model.embed, steps(blocks), steps(heads)),
        golden=opened.golden,
        states=opened.states,
        decode=opened.tokenizer.decode,
        policy=opened.model.policy.behaviour,
        provenance=backend.provenance() | {s: a.digest for s, a in paths.items()},
    )


def _step(backend: Backend, artifact: Artifact, layout: Layout) -> Step:
    runner = backend.load(artifact.path)
    return lambda hidden: layout.output(runner.predict(layout.inputs(hidden)))
