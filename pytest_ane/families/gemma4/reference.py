"""The float32 reference: attention, experts and head as the published formulas read.

Source: `modeling_gemma4.py` of Hugging Face transformers: docs/reference/families/gemma4.md.
Weights come when they are needed, experts one by one and only the chosen ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.base import Routes
from pytest_ane.families.gemma4.config import Gemma4Config
from pytest_ane.families.gemma4.shards import ShardRole
from pytest_ane.families.gemma4.weights import (
    AttentionWeights,
    CombinerWeights,
    HeadWeights,
    RouterWeights,
    Weights,
)
from pytest_ane.families.layout import AneLayout, causal_mask
from pytest_ane.families.reference import (
    attend,
    close_choices,
    rms_norm,
    rotate,
    run_each,
    run_together,
    split_heads,
)


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
    h = rms_norm(x, c.epsilon) * w.input_norm
    q = rotate(rms_norm(split_heads(h @ w.q.T, len(w.q_norm)), c.epsilon) * w.q_norm, *tables)
    projected = attend(q, *_keys_values(h, tables, w, c), mask) @ w.o.T
    return x + rms_norm(projected, c.epsilon) * w.post_norm


def _keys_values(
    h: Tensor, tables: tuple[Tensor, Tensor], w: AttentionWeights, c: Gemma4Config
) -> tuple[Tensor, Tensor]:
    """What a state keeps of normed `h [T, C]`: keys and values `[kv_heads, T, d]`."""
    head = len(w.q_norm)
    key = split_heads(h @ w.k.T, head)
    k = rotate(rms_norm(key, c.epsilon) * w.k_norm, *tables)
    return k, rms_norm(key if w.v is None else split_heads(h @ w.v.T, head), c.epsilon)


def filled(
    weights: Weights, of: ShardRole, layout: AneLayout, hidden: FloatArray
) -> dict[str, FloatArray]:
    """States `[kv_heads, 1, d, S]` after a sequence `[T, C]` from position 0 on."""
    w, c = weights.attention(int(of.layer)), weights.config
    assert layout.rotary is not None
    assert layout.context is not None
    cos, sin = map(torch.from_numpy, layout.rotary.tables(len(hidden)))
    with torch.inference_mode():
        h = rms_norm(torch.from_numpy(hidden), c.epsilon) * w.input_norm
        columns = (x.transpose(1, 2)[:, None] for x in _keys_values(h, (cos, sin), w, c))
        rest = (0, layout.context - len(hidden))
        return {
            name: F.pad(x, rest).numpy()
            for name, x in zip(("k_cache", "v_cache"), columns, strict=True)
        }


def route(x: Tensor, w: RouterWeights, c: Gemma4Config) -> Tensor:
    """Routing weights `[T, experts]`, zero but for the `top` chosen.

    The largest probabilities, made to sum to 1, times each expert's scale. Of equal ones the lower
    expert comes first.
    """
    p = torch.softmax((rms_norm(x, c.epsilon) * w.scale) @ w.projection.T, dim=-1)
    values, order = p.sort(dim=-1, descending=True, stable=True)
    values, order = values[:, : c.top], order[:, : c.top]
    values = values / values.sum(-1, keepdim=True) * w.expert_scale[order]
    return torch.zeros_like(p).scatter(1, order, values)


def experts(x: Tensor, layer: int, chosen: Sequence[int], weights: Weights) -> Tensor:
    """What some experts of a layer add at every position, `[T, C]`; zero where none is chosen."""
    c, w = weights.config, weights.router(layer)
    routing = route(x, w, c)
    h = rms_norm(x, c.epsilon) * w.norm
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
    h = rms_norm(x, c.epsilon) * w.pre_norm
    dense = (F.gelu(h @ w.gate.T, approximate="tanh") * (h @ w.up.T)) @ w.down.T
    both = rms_norm(dense, c.epsilon) * w.dense_norm + rms_norm(moe, c.epsilon) * w.expert_norm
    return (x + rms_norm(both, c.epsilon) * w.post_norm) * w.scalar


def logits(x: Tensor, w: HeadWeights, c: Gemma4Config) -> Tensor:
    """One vocabulary slice of the logits `[T, V / slices]`, softly capped."""
    y = (rms_norm(x, c.epsilon) * w.norm) @ w.projection.T
    return torch.tanh(y / c.cap) * c.cap


def run(
    weights: Weights,
    of: ShardRole,
    layout: AneLayout,
    slices: int,
    sequences: Sequence[FloatArray],
) -> list[FloatArray]:
    """A shard's outputs for hidden states `[T, C]`, each sequence from position 0.

    `layout` gives the angles and the window of attention, `slices` the parts of the head.
    """
    if of.kind == "attn":
        return run_each(_attention(weights, int(of.layer), layout), sequences)
    return run_together(_positionwise(weights, of, slices), sequences)


def residual(weights: Weights, of: ShardRole, sequences: Sequence[FloatArray]) -> list[FloatArray]:
    """What the last pack of a layer gives of the residual stream alone, `[T, C]` of `[T, 2C]`."""
    width = weights.config.width
    scalar = weights.scalar(int(of.layer))
    return [(torch.from_numpy(both[:, :width]) * scalar).numpy() for both in sequences]


def routed(weights: Weights, of: ShardRole, sequences: Sequence[FloatArray]) -> list[Routes]:
    """A pack's own experts that are chosen at each position, the largest weight first."""
    c = weights.config
    w = weights.router(int(of.layer))
    own = _own(of, c)

    def active(hidden: FloatArray) -> Routes:
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(hidden[:, : c.width]))
            chosen = route(x, w, c)[:, own.start : own.stop]
        return tuple(
            tuple(sorted((own[e] for e in np.flatnonzero(row)), key=lambda e: -row[e - own[0]]))
            for row in chosen.numpy()
        )

    return [active(hidden) for hidden in sequences]


def undecided(
    weights: Weights, of: ShardRole, sequences: Sequence[FloatArray]
) -> list[tuple[int, ...]]:
    """Rows at which fp16 cannot tell whether one of a pack's own experts is chosen."""
    c, w, own = weights.config, weights.router(int(of.layer)), _own(of, weights.config)

    def close(hidden: FloatArray) -> tuple[int, ...]:
        with torch.inference_mode():
            x = torch.from_numpy(np.ascontiguousarray(hidden[:, : c.width]))
            normed = rms_norm(x, c.epsilon) * w.scale
            close = close_choices(normed, w.projection, c.top)
            mine = close[:, own.start : own.stop].any(dim=-1)
        return tuple(np.flatnonzero(mine.numpy()).tolist())

    return [close(hidden) for hidden in sequences]


def _attention(weights: Weights, layer: int, layout: AneLayout) -> Callable[[Tensor], Tensor]:
    rotary, w = layout.rotary, weights.attention(layer)
    assert rotary is not None

    def attended(x: Tensor) -> Tensor:
        cos, sin = map(torch.from_numpy, rotary.tables(len(x)))
        mask = torch.from_numpy(causal_mask(len(x), window=layout.window))
        return attention(x, (cos, sin), mask, w, weights.config)

    return attended


def _positionwise(weights: Weights, of: ShardRole, slices: int) -> Callable[[Tensor], Tensor]:
    c = weights.config
    if of.kind == "head":
        head = weights.head(of.index, slices)
        return lambda x: logits(x, head, c)
    layer = int(of.layer)
    own = _own(of, c)
    if not of.combines:
        return lambda x: experts(x, layer, own, weights)

    def combined(both: Tensor) -> Tensor:
        x, others = torch.split(both, c.width, dim=1)
        moe = others + experts(x, layer, own, weights)
        return combine(x, moe, weights.combiner(layer), c)

    return combined


def _own(of: ShardRole, c: Gemma4Config) -> range:
    return range(of.index * c.pack, (of.index + 1) * c.pack)
