"""The float32 reference: a decoder's block and head as the published formulas read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Routes
from pytest_ane.models.families._layout import causal_mask
from pytest_ane.models.families._reference import (
    attend,
    close_choices,
    rms_norm,
    rotate,
    softly_capped,
    split_heads,
)
from pytest_ane.models.families.decoder._config import Activation, DecoderConfig
from pytest_ane.models.families.decoder._weights import (
    AttentionWeights,
    BlockWeights,
    HeadWeights,
    Linear,
    SharedExpert,
)


def block(x: Tensor, w: BlockWeights, c: DecoderConfig, index: int) -> Tensor:
    x = attended(x, w, c, index)
    h = normed(x, w.ffn_norm, c)
    inner = activated(linear(h, w.gate), c.activation) * linear(h, w.up)
    if w.router is not None:
        inner = weighted(inner, shares(h, w.router, c))
    given = linear(inner, w.down)
    if w.shared is not None:
        given = given + shared(h, w.shared, c)
    return x + normed(given, w.ffn_post_norm, c) * c.residual_scale


def attended(x: Tensor, w: AttentionWeights, c: DecoderConfig, index: int) -> Tensor:
    given = attention(normed(x, w.attention_norm, c), w, c, index)
    return x + normed(given, w.attention_post_norm, c) * c.residual_scale


def routed(x: Tensor, w: BlockWeights, c: DecoderConfig, index: int) -> Routes:
    assert w.router is not None
    rows = shares(entering(x, w, c, index), w.router, c)
    return tuple(
        tuple(row.argsort(descending=True)[: int((row > 0).sum())].tolist()) for row in rows
    )


def undecided(x: Tensor, w: BlockWeights, c: DecoderConfig, index: int) -> tuple[int, ...]:
    assert w.router is not None
    assert c.mixture is not None
    close = close_choices(entering(x, w, c, index), w.router, c.mixture.top)
    return tuple(close.any(dim=-1).nonzero()[:, 0].tolist())


def entering(x: Tensor, w: BlockWeights, c: DecoderConfig, index: int) -> Tensor:
    return normed(attended(x, w, c, index), w.ffn_norm, c)


def normed(x: Tensor, weight: Tensor | None, c: DecoderConfig) -> Tensor:
    """RMSNorm over the last axis; `x` where there is no such norm."""
    return x if weight is None else rms_norm(x, c.epsilon) * weight


def linear(x: Tensor, w: Linear) -> Tensor:
    return x @ w.weight.T if w.bias is None else x @ w.weight.T + w.bias


def activated(x: Tensor, activation: Activation) -> Tensor:
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")


def shares(h: Tensor, router: Tensor, c: DecoderConfig) -> Tensor:
    """What each expert counts for at normed states `[T, C]`: `[T, experts]`, 0 if not chosen.

    Of equal ones the lower expert comes first.
    """
    assert c.mixture is not None
    of_all = torch.softmax(h @ router.T, dim=-1)
    values, chosen = of_all.sort(dim=-1, descending=True, stable=True)
    values, chosen = values[:, : c.mixture.top], chosen[:, : c.mixture.top]
    if c.mixture.normalized:
        values = values / values.sum(dim=-1, keepdim=True)
    return torch.zeros_like(of_all).scatter(1, chosen, values)


def weighted(inner: Tensor, shares: Tensor) -> Tensor:
    apart = inner.reshape(*shares.shape, -1) * shares[:, :, None]
    return apart.reshape(inner.shape)


def shared(h: Tensor, w: SharedExpert, c: DecoderConfig) -> Tensor:
    inner = activated(linear(h, w.gate), c.activation) * linear(h, w.up)
    return linear(inner, w.down) * torch.sigmoid(linear(h, w.router))


def attention(h: Tensor, w: AttentionWeights, c: DecoderConfig, index: int) -> Tensor:
    head, _ = c.heads_of(index)
    q = turned(split_heads(linear(h, w.q), head), w.q_norm, c, index)
    k, v = keys_and_values(h, w, c, index)
    mask = torch.from_numpy(causal_mask(len(h), window=c.layers[index].window))
    return linear(attend(q, k, v, mask, 1 / c.scale, c.score_cap), w.o)


def keys_and_values(
    h: Tensor, w: AttentionWeights, c: DecoderConfig, index: int
) -> tuple[Tensor, Tensor]:
    """Of normed states, `[KV, T, d]` each, as a cache holds them."""
    head, _ = c.heads_of(index)
    key = split_heads(linear(h, w.k), head)
    value = key if w.v is None else split_heads(linear(h, w.v), head)
    value = rms_norm(value, c.epsilon) if c.value_norms else value
    return turned(key, w.k_norm, c, index), value


def turned(x: Tensor, norm: Tensor | None, c: DecoderConfig, index: int) -> Tensor:
    """Heads `[*, T, d]` from position 0, normed and turned."""
    x, rotary = normed(x, norm, c), c.layers[index].rotary
    if rotary is None:
        return x
    cos, sin = map(torch.from_numpy, c.rotaries[rotary].tables(x.shape[1]))
    return rotate(x, cos, sin)


def filled(x: Tensor, w: AttentionWeights, c: DecoderConfig, index: int) -> dict[str, FloatArray]:
    """The states after a sequence `[T, C]` from position 0, each `[KV, 1, d, S]`."""
    slots = c.slots(index) or 0
    both = keys_and_values(normed(x, w.attention_norm, c), w, c, index)
    last = np.arange(max(0, len(x) - slots), len(x))
    states, (head, kv_heads) = {}, c.heads_of(index)
    for name, values in zip(("k_cache", "v_cache"), both, strict=True):
        state = np.zeros((kv_heads, 1, head, slots), np.float32)
        state[:, 0, :, last % slots] = values[:, last].permute(1, 0, 2).numpy()
        states[name] = state
    return states


def logits(x: Tensor, w: HeadWeights, c: DecoderConfig) -> Tensor:
    """Logits `[T, V / slices]` of a vocabulary slice for hidden states `[T, C]`."""
    plain = normed(x, w.norm, c) @ w.projection.T
    return softly_capped(plain * c.logit_scale, c.logit_cap)
