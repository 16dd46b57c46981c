"""The float32 reference: attention, experts and head as the published formulas read.

Source: `modeling_gemma4.py` of Hugging Face transformers: docs/reference/families/gemma4.md.
Weights come when they are needed, experts one by one and only the chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.families.gemma4.config import Gemma4Config
from pytest_ane.families.gemma4.weights import (
    AttentionWeights,
    CombinerWeights,
    HeadWeights,
    RouterWeights,
    Weights,
)


def unit(x: Tensor, epsilon: float) -> Tensor:
    """RMSNorm without a weight, over the last axis: x / sqrt(mean(x^2) + eps)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half RoPE of `[heads, T, d]` with tables `[T, d]`."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def attention(
    x: Tensor,
    tables: tuple[Tensor, Tensor],
    mask: Tensor,
    w: AttentionWeights,
    c: Gemma4Config,
) -> Tensor:
    """The residual stream `[T, C]` after attention; tables `[T, d]`, additive mask `[T, T]`.

    Scores are not divided by sqrt(d): the norms of queries and keys set their scale.
    """
    h = unit(x, c.epsilon) * w.input_norm
    head = len(w.q_norm)
    q = rotate(unit(_heads(h @ w.q.T, head), c.epsilon) * w.q_norm, *tables)
    key = _heads(h @ w.k.T, head)
    k = rotate(unit(key, c.epsilon) * w.k_norm, *tables)
    v = unit(key if w.v is None else _heads(h @ w.v.T, head), c.epsilon)
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    mixed = torch.softmax(q @ k.transpose(1, 2) + mask, dim=-1) @ v
    given = mixed.transpose(0, 1).reshape(len(x), -1) @ w.o.T
    return x + unit(given, c.epsilon) * w.post_norm


def route(x: Tensor, w: RouterWeights, c: Gemma4Config) -> Tensor:
    """Routing weights `[T, experts]`, zero but for the `top` chosen.

    The largest probabilities, made to sum to 1, times each expert's scale. Of equal ones the lower
    expert comes first.
    """
    p = torch.softmax((unit(x, c.epsilon) * w.scale) @ w.projection.T, dim=-1)
    values, order = p.sort(dim=-1, descending=True, stable=True)
    values, order = values[:, : c.top], order[:, : c.top]
    values = values / values.sum(-1, keepdim=True) * w.expert_scale[order]
    return torch.zeros_like(p).scatter(1, order, values)


def experts(x: Tensor, layer: int, chosen: Sequence[int], weights: Weights) -> Tensor:
    """What some experts of a layer add at every position, `[T, C]`; zero where none is chosen."""
    c, w = weights.config, weights.router(layer)
    routing = route(x, w, c)
    h = unit(x, c.epsilon) * w.norm
    out = torch.zeros_like(x)
    for e in chosen:
        at = routing[:, e].nonzero()[:, 0]
        if len(at):
            gated = F.gelu(h[at] @ weights.gate(layer, e).T, approximate="tanh")
            gated *= h[at] @ weights.up(layer, e).T
            out[at] += gated @ weights.down(layer, e).T * routing[at, e, None]
    return out


def combine(x: Tensor, moe: Tensor, w: CombinerWeights, c: Gemma4Config) -> Tensor:
    """The layer's output `[T, C]` from its residual stream and the sum of its experts."""
    h = unit(x, c.epsilon) * w.pre_norm
    dense = (F.gelu(h @ w.gate.T, approximate="tanh") * (h @ w.up.T)) @ w.down.T
    both = unit(dense, c.epsilon) * w.dense_norm + unit(moe, c.epsilon) * w.expert_norm
    return (x + unit(both, c.epsilon) * w.post_norm) * w.scalar


def logits(x: Tensor, w: HeadWeights, c: Gemma4Config) -> Tensor:
    """One vocabulary slice of the logits `[T, V / slices]`, softly capped."""
    y = (unit(x, c.epsilon) * w.norm) @ w.projection.T
    return torch.tanh(y / c.cap) * c.cap


def _heads(x: Tensor, head: int) -> Tensor:
    return x.reshape(len(x), -1, head).transpose(0, 1)
