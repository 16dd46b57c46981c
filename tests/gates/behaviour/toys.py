"""A toy stack: blocks that turn hidden states a little, a head in two slices, some of it spoilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.chain import Chain, ChainStep, Decoder
from pytest_ane.models.families import Streams, Wire, apply_output, shard_input
from pytest_ane.probes.exact_chain import GoldenPrompt, ReferenceStates

WIDTH, VOCABULARY = 12, 10
POLICY = BehaviourPolicy(min_greedy=2, min_positions=1)
_RNG = np.random.default_rng(11)
_EMBEDDING = _RNG.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
_HEAD = _RNG.standard_normal((WIDTH, VOCABULARY)).astype(np.float32)

Turn = Callable[[FloatArray], FloatArray]


def embed(ids: Sequence[int]) -> FloatArray:
    return _EMBEDDING[list(ids)]


def block(seed: int, off: float) -> Turn:
    """A residual path plus a causal mean; `off` is the relative error of the weights."""
    rng = np.random.default_rng(seed)
    exact = rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5
    weight = (exact + off * rng.standard_normal(exact.shape) / WIDTH**0.5).astype(np.float32)

    def run(x: FloatArray) -> FloatArray:
        mean = np.cumsum(x, axis=0) / np.arange(1, len(x) + 1, dtype=np.float32)[:, None]
        return (x + np.tanh(mean @ weight)).astype(np.float32)

    return run


def toy(blocks: int, errors: Mapping[str, float] | None = None, base: float = 0.0) -> Chain:
    """Blocks `L00`... and two slices of the head, each off by its error or by `base`."""
    errors = errors or {}
    steps = []
    for i in range(blocks):
        run = block(i, errors.get(f"L{i:02d}", base))
        steps.append(ChainStep(Wire(f"L{i:02d}"), lambda run=run: run))
    noise = np.random.default_rng(99).standard_normal(_HEAD.shape)
    for i, part in enumerate((slice(0, 5), slice(5, None))):
        name = f"head.{i}"
        weight = (_HEAD + errors.get(name, base) * noise)[:, part].astype(np.float32)
        wire = Wire(name, gives="logits", mode="append")
        steps.append(ChainStep(wire, lambda w=weight: lambda x: x @ w, "itself"))
    return Chain(embed, tuple(steps))


def golden(chain: Chain, *prompts: Sequence[int], greedy: int = 2) -> list[GoldenPrompt]:
    """What a chain says of prompts of these ids."""
    found = []
    for i, ids in enumerate(prompts or ([1, 5, 3, 8, 2], [7, 0, 4])):
        _, tokens, leads = chain.answer(ids, greedy)
        found.append(GoldenPrompt(f"p{i}", tuple(ids), chain.logits(ids), tokens, leads, ""))
    return found


def states_of(chain: Chain, prompts: Sequence[GoldenPrompt]) -> ReferenceStates:
    """Hidden states of a chain as `OpenModel.states` gives them."""
    known: dict[tuple[str, str], tuple[FloatArray, FloatArray]] = {}
    for prompt in prompts:
        streams: Streams = {"x": chain.embed(prompt.ids)}
        for step in chain.blocks:
            before = shard_input(streams, step.wire)
            after = step.open()(before)
            known[prompt.name, step.shard] = before, after
            apply_output(streams, step.wire, after)
    return lambda prompt, shard: known[prompt, shard]


def stack_of(
    chain: Chain, exact: Chain, prompts: Sequence[GoldenPrompt],
    states: ReferenceStates | None = None, policy: BehaviourPolicy = POLICY, **provenance: str,
) -> Any:  # fmt: skip
    """What commands take of `project.Stack`."""
    return SimpleNamespace(
        chain=chain, reference=exact, golden=prompts, states=states or states_of(exact, prompts),
        policy=policy, model="toy", provenance=provenance,
    )  # fmt: skip


def final(chain: Chain, ids: Sequence[int]) -> FloatArray:
    """Hidden states after the last block."""
    return Decoder(chain, ids).streams()["x"]
