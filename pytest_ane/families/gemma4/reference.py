"""The float32 reference of packs: experts and the end of a layer as the published formulas read.

Source: `modeling_gemma4.py` of Hugging Face transformers: docs/reference/families/gemma4.md.
Weights come when they are needed, experts one by one and only the chosen ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.base import Routes
from pytest_ane.families.decoder.config import DecoderConfig
from pytest_ane.families.decoder.reference import activated, linear, normed, shares
from pytest_ane.families.gemma4.config import own_experts
from pytest_ane.families.gemma4.shards import ShardRole
from pytest_ane.families.gemma4.weights import CombinerWeights, RouterWeights, Weights
from pytest_ane.families.reference import close_choices, rms_norm


def route(x: Tensor, w: RouterWeights, c: DecoderConfig) -> Tensor:
    """Routing weights `[T, experts]`: the chosen ones' shares times each expert's scale."""
    return shares(rms_norm(x, c.epsilon) * w.scale, w.projection, c) * w.expert_scale


def experts(x: Tensor, layer: int, chosen: Sequence[int], weights: Weights) -> Tensor:
    """What some experts of a layer add at every position, `[T, C]`; zero where none is chosen."""
    c, w = weights.config, weights.router(layer)
    routing = route(x, w, c)
    h = normed(x, w.norm, c)
    out = torch.zeros_like(x)
    for e in chosen:
        at = routing[:, e].nonzero()[:, 0]
        if len(at):
            gated = activated(h[at] @ weights.gate(layer, e).T, c.activation)
            gated *= h[at] @ weights.up(layer, e).T
            out[at] += gated @ weights.down(layer, e).T * routing[at, e, None]
    return out


def combine(x: Tensor, moe: Tensor, w: CombinerWeights, c: DecoderConfig) -> Tensor:
    """The layer's output `[T, C]` from its residual stream and the sum of its experts."""
    h = normed(x, w.pre_norm, c)
    dense = linear(activated(linear(h, w.gate), c.activation) * linear(h, w.up), w.down)
    both = normed(dense, w.dense_norm, c) + normed(moe, w.expert_norm, c)
    return (x + normed(both, w.post_norm, c)) * w.scalar


def pack(weights: Weights, of: ShardRole) -> Callable[[Tensor], Tensor]:
    """A pack on hidden states `[T, C]`; the last one's are `[T, 2C]`, the other packs' sum below.

    Positions do not see one another.
    """
    c, layer = weights.config, int(of.layer)
    own = own_experts(c, of.index)
    if not of.combines:
        return lambda x: experts(x, layer, own, weights)

    def combined(both: Tensor) -> Tensor:
        x, others = torch.split(both, c.width, dim=1)
        moe = others + experts(x, layer, own, weights)
        return combine(x, moe, weights.combiner(layer), c)

    return combined


def residual(weights: Weights, of: ShardRole, sequences: Sequence[FloatArray]) -> list[FloatArray]:
    """What the last pack of a layer gives of the residual stream alone, `[T, C]` of `[T, 2C]`."""
    width = weights.config.width
    scalar = weights.scalar(int(of.layer))
    return [(torch.from_numpy(both[:, :width]) * scalar).numpy() for both in sequences]


def routed(weights: Weights, of: ShardRole, sequences: Sequence[FloatArray]) -> list[Routes]:
    """A pack's own experts that are chosen at each position, the largest weight first."""
    c, w = weights.config, weights.router(int(of.layer))
    own = own_experts(c, of.index)

    def active(hidden: FloatArray) -> Routes:
        chosen = route(_stream(hidden, c), w, c)[:, own.start : own.stop]
        return tuple(
            tuple(sorted((own[e] for e in np.flatnonzero(row)), key=lambda e: -row[e - own[0]]))
            for row in chosen.numpy()
        )

    with torch.inference_mode():
        return [active(hidden) for hidden in sequences]


def undecided(
    weights: Weights, of: ShardRole, sequences: Sequence[FloatArray]
) -> list[tuple[int, ...]]:
    """Rows at which fp16 cannot tell whether one of a pack's own experts is chosen."""
    c, w = weights.config, weights.router(int(of.layer))
    own = own_experts(c, of.index)

    def close(hidden: FloatArray) -> tuple[int, ...]:
        entering = rms_norm(_stream(hidden, c), c.epsilon) * w.scale
        close = close_choices(entering, w.projection, weights.mixture.top)
        mine = close[:, own.start : own.stop].any(dim=-1)
        return tuple(np.flatnonzero(mine.numpy()).tolist())

    with torch.inference_mode():
        return [close(hidden) for hidden in sequences]


def _stream(hidden: FloatArray, c: DecoderConfig) -> Tensor:
    """The residual stream in what enters a pack."""
    return torch.from_numpy(np.ascontiguousarray(hidden[:, : c.width]))
