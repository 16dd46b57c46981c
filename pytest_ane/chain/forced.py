"""Teacher forcing: every shard on the reference's own states, so none has another's error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ane.chain.chain import Chain
from pytest_ane.chain.golden import Golden
from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import Streams, apply_output, shard_input
from pytest_ane.metrics import cosine, is_cosine
from pytest_ane.metrics.logits import LogitSummary, compare_logits

States: TypeAlias = Callable[[str, str], tuple[FloatArray, FloatArray]]
"""`states(prompt, shard)`: the reference's hidden states that enter and leave a block."""


@dataclass(frozen=True)
class Head:
    """The head on the reference's own last states, position 0 left out: its error alone.

    What the whole stack's figures have beyond these has come from the blocks.
    """

    top1: float
    kl: float
    centred_cosine: float

    def __post_init__(self) -> None:
        if not (0 <= self.top1 <= 1 and is_cosine(self.centred_cosine)) or self.kl < -1e-6:
            raise ValueError("the head alone has a share, a divergence or a cosine that is none")


@dataclass(frozen=True)
class Forced:
    """Every shard alone.

    Attributes:
        lowest: by shard in running order, the lowest cosine of a position; NaN, which `min` of
            numpy propagates, is worst of all. Without shards that rightly give only zeros.
        heads: by prompt; None for one of a single position.
    """

    lowest: tuple[tuple[str, float], ...]
    heads: tuple[Head | None, ...]


def forced(chain: Chain, golden: Sequence[Golden], states: States) -> Forced:
    """Run every shard of a chain on what the reference gives it, in the prompts' order."""
    found: dict[str, list[npt.NDArray[np.float64]]] = {step.shard: [] for step in chain.steps}
    heads = []
    for prompt in golden:
        streams: Streams = {"x": chain.embed(prompt.ids)}
        for step in chain.blocks:
            before, after = states(prompt.name, step.shard)
            found[step.shard].append(_cosines(step.open()(before), after))
            apply_output(streams, step.wire, after)
        logits = _head(chain, streams, prompt.logits, found)
        heads.append(None if logits is None else _alone(prompt.logits, logits))
    joined = {shard: np.concatenate(cosines) for shard, cosines in found.items() if cosines}
    lowest = {shard: float(values.min()) for shard, values in joined.items() if len(values)}
    return Forced(tuple(lowest.items()), tuple(heads))


def _head(
    chain: Chain,
    streams: Streams,
    expected: FloatArray,
    found: dict[str, list[npt.NDArray[np.float64]]],
) -> FloatArray | None:
    """Logits of the head's slices, each held against its own part of the reference's."""
    start = 0
    for step in chain.steps:
        if step.is_head:
            output = step.open()(shard_input(streams, step.wire))
            end = start + output.shape[1]
            found[step.shard].append(_cosines(output, expected[:, start:end]))
            apply_output(streams, step.wire, output)
            start = end
    return streams.get("logits")


def _alone(expected: FloatArray, logits: FloatArray) -> Head | None:
    positions = compare_logits(expected, logits)[1:]
    if not positions:
        return None
    summary = LogitSummary.of(positions)
    return Head(summary.top1, summary.kl, summary.centred_cosine.min)


def _cosines(output: FloatArray, expected: FloatArray) -> npt.NDArray[np.float64]:
    """By position, without those where both sides are zero.

    As a pack of experts is that none was chosen of: they agree and there is nothing to compare.
    """
    live = output.any(axis=1) | expected.any(axis=1)
    return cosine(output[live], expected[live])
