"""References of shards: the float32 formulas over several sequences, weights read once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pytest_ane.families.base import Routes
from pytest_ane.families.gemma4 import reference
from pytest_ane.families.gemma4.config import Gemma4Config
from pytest_ane.families.gemma4.layout import Gemma4Layout, mask
from pytest_ane.families.gemma4.shards import Part
from pytest_ane.families.gemma4.weights import Weights
from pytest_ane.sources.base import FloatArray


def run(
    weights: Weights,
    of: Part,
    layout: Gemma4Layout,
    slices: int,
    sequences: Sequence[FloatArray],
) -> list[FloatArray]:
    """A shard's outputs for hidden states `[T, C]`, each sequence from position 0.

    `layout` gives the angles and the window of attention, `slices` the parts of the head.
    """
    with torch.inference_mode():
        inputs = [torch.from_numpy(hidden) for hidden in sequences]
        if of.kind == "attn":
            outputs = _attention(weights, int(of.layer), layout, inputs)
        else:
            # No position sees another, so all sequences are one.
            rows = _positionwise(weights, of, slices)(torch.cat(inputs))
            outputs = list(torch.split(rows, [len(x) for x in inputs]))
        return [y.numpy() for y in outputs]


def residual(weights: Weights, of: Part, sequences: Sequence[FloatArray]) -> list[FloatArray]:
    """What the last pack of a layer gives of the residual stream alone, `[T, C]` of `[T, 2C]`."""
    width = weights.config.width
    scalar = weights.scalar(int(of.layer))
    return [(torch.from_numpy(both[:, :width]) * scalar).numpy() for both in sequences]


def routed(weights: Weights, of: Part, sequences: Sequence[FloatArray]) -> list[Routes]:
    """A pack's own experts that are chosen at each position, the largest weight first."""
    c = weights.config
    w = weights.router(int(of.layer))
    own = _own(of, c)

    def active(hidden: FloatArray) -> Routes:
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(hidden[:, : c.width]))
            chosen = reference.route(x, w, c)[:, own.start : own.stop]
        return tuple(
            tuple(sorted((own[e] for e in np.flatnonzero(row)), key=lambda e: -row[e - own[0]]))
            for row in chosen.numpy()
        )

    return [active(hidden) for hidden in sequences]


def _attention(
    weights: Weights, layer: int, layout: Gemma4Layout, inputs: Sequence[Tensor]
) -> list[Tensor]:
    assert layout.rotary is not None
    w, outputs = weights.attention(layer), []
    for x in inputs:
        length = len(x)
        cos, sin = map(torch.from_numpy, layout.rotary.tables(length))
        seen = torch.from_numpy(mask(length, 0, length, layout.window))
        outputs.append(reference.attention(x, (cos, sin), seen, w, weights.config))
    return outputs


def _positionwise(weights: Weights, of: Part, slices: int) -> Callable[[Tensor], Tensor]:
    c = weights.config
    if of.kind == "head":
        head = weights.head(of.index, slices)
        return lambda x: reference.logits(x, head, c)
    layer = int(of.layer)
    own = _own(of, c)
    if not of.combines:
        return lambda x: reference.experts(x, layer, own, weights)

    def combined(both: Tensor) -> Tensor:
        x, others = torch.split(both, c.width, dim=1)
        moe = others + reference.experts(x, layer, own, weights)
        return reference.combine(x, moe, weights.combiner(layer), c)

    return combined


def _own(of: Part, c: Gemma4Config) -> range:
    return range(of.index * c.pack, (of.index + 1) * c.pack)
