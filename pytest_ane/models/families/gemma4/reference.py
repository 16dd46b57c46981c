"""The float32 reference of packs: experts and the end of a layer as the published formulas read.

Source: `modeling_gemma4.py` of Hugging Face transformers: docs/reference/families/gemma4.md.
Weights come when they are needed, experts one by one and only the chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_ane.models.families import Routes
from pytest_ane.models.families._reference import close_choices, rms_norm
from pytest_ane.models.families.decoder._config import FEED_FORWARD, DecoderConfig
from pytest_ane.models.families.decoder._reference import activated, linear, normed, shares
from pytest_ane.models.families.gemma4.config import Part, own_experts
from pytest_ane.models.families.gemma4.weights import CombinerWeights, RouterWeights, Weights


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
            gate, up, down = (weights.expert(layer, e, name) for name in FEED_FORWARD)
            gated = activated(h[at] @ gate.T, c.activation) * (h[at] @ up.T)
            out[at] += gated @ down.T * routing[at, e, None]
    return out


def combine(x: Tensor, moe: Tensor, w: CombinerWeights, c: DecoderConfig) -> Tensor:
    """The layer's output `[T, C]` from its residual stream and the sum of its experts."""
    h = normed(x, w.pre_norm, c)
    dense = linear(activated(linear(h, w.gate), c.activation) * linear(h, w.up), w.down)
    both = normed(dense, w.dense_norm, c) + normed(moe, w.expert_norm, c)
    return (x + normed(both, w.post_norm, c)) * w.scalar


def pack(x: Tensor, weights: Weights, of: Part) -> Tensor:
    """A pack at hidden states `[T, C]`; the last one's are `[T, 2C]`, the other packs' sum below.

    Positions do not see one another.
    """
    c = weights.config
    own = own_experts(c, of.pack)
    if not of.combines:
        return experts(x, of.layer, own, weights)
    x, others = torch.split(x, c.width, dim=1)
    moe = others + experts(x, of.layer, own, weights)
    return combine(x, moe, weights.combiner(of.layer), c)


def routed(x: Tensor, w: RouterWeights, c: DecoderConfig, own: range) -> Routes:
    """A pack's own experts that are chosen at each position, the largest weight first."""
    rows = route(x, w, c)[:, own.start : own.stop]
    orders = rows.argsort(dim=-1, descending=True, stable=True)
    return tuple(
        tuple(own[e] for e in order if row[e])
        for row, order in zip(rows.tolist(), orders.tolist(), strict=True)
    )


def undecided(x: Tensor, w: RouterWeights, c: DecoderConfig, own: range) -> tuple[int, ...]:
    """Rows at which fp16 cannot tell whether one of a pack's own experts is chosen."""
    assert c.mixture is not None
    entering = rms_norm(x, c.epsilon) * w.scale
    close = close_choices(entering, w.projection, c.mixture.top)
    return tuple(close[:, own.start : own.stop].any(dim=-1).nonzero()[:, 0].tolist())
