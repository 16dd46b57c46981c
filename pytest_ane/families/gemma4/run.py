"""References of shards: the float32 formulas over several sequences, weights read once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pytest_ane.families.gemma4 import reference
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
    own = range(of.index * c.pack, (of.index + 1) * c.pack)
    if not of.combines:
        return lambda x: reference.experts(x, layer, own, weights)

    def combined(both: Tensor) -> Tensor:
        x, others = torch.split(both, c.width, dim=1)
        moe = others + reference.experts(x, layer, own, weights)
        return reference.combine(x, moe, weights.combiner(layer), c)

    return combined
