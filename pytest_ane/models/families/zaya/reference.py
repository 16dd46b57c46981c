"""The float32 reference: attention and mixture of experts as the formulas read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.models.families import Routes
from pytest_ane.models.families._layout import causal_mask
from pytest_ane.models.families._reference import CLOSE, attend, split_heads
from pytest_ane.models.families.decoder._reference import linear, normed, turned
from pytest_ane.models.families.decoder._weights import Linear
from pytest_ane.models.families.zaya.config import ZayaConfig
from pytest_ane.models.families.zaya.weights import (
    AttentionWeights,
    MixtureWeights,
    Residual,
    RouterWeights,
    ZayaWeights,
)


def mixture(x: Tensor, w: MixtureWeights, c: ZayaConfig, index: int, source: ZayaWeights) -> Tensor:
    """A mixture of experts on `[T, C]`, whose experts are read some rows at a time.

    The router's state is below the hidden states where it is carried, in and out.
    """
    h, shares, state = routed(x, w, c)
    mixed = torch.zeros_like(h)
    for number in range(shares.shape[1] - 1):
        rows = shares[:, number].nonzero()[:, 0]
        if len(rows):
            gate, up = source.project(h[rows], index, number, "linear_fc1").chunk(2, dim=1)
            given = source.project(F.silu(gate) * up, index, number, "linear_fc2")
            mixed[rows] += shares[rows, number, None] * given
    return torch.cat([merge(x[:, : c.width], mixed, w.residual), state], dim=1)


def path(x: Tensor, w: MixtureWeights, c: ZayaConfig) -> Tensor:
    """What the residual path alone gives of a mixture's `[T, C]`.

    The router's state is all path, for it adds nothing to the residual stream: what is left of an
    output is what the experts add.
    """
    _, _, state = routed(x, w, c)
    return torch.cat([carried(x[:, : c.width], w.residual), state], dim=1)


def routes(x: Tensor, w: MixtureWeights, c: ZayaConfig, _index: int) -> Routes:
    """Experts that count at each position, the one of the largest share first.

    In the published model the chosen one, unless none is. In the notes' form all run, and those
    count that have more than an even share of all slots.
    """
    _, shares, _ = routed(x, w, c)
    least = 0.0 if c.is_published else 1 / shares.shape[1]
    ordered = shares[:, :-1].sort(dim=1, descending=True, stable=True)
    counts = (ordered.values > least).sum(dim=1)
    rows = zip(ordered.indices.tolist(), counts.tolist(), strict=True)
    return tuple(tuple(row[:count]) for row, count in rows)


def undecided(x: Tensor, w: MixtureWeights, c: ZayaConfig, _index: int) -> tuple[int, ...]:
    """Rows at which rounding to fp16 decides which slot is chosen.

    As `close_choices` has it, products of the router's layers are off by up to 2^-11 of themselves,
    independently; of each layer's error the lead of the best slot has its derivative's part.
    """
    with torch.inference_mode(False), torch.enable_grad():
        layers = _router(x.clone().requires_grad_(), w, c)
        best = _votes(layers[-1].given, w.router).topk(2, dim=1).values
        lead = best[:, 0] - best[:, 1]
        slopes = torch.autograd.grad(lead.sum(), [layer.given for layer in layers])
    variance = best.square().sum(dim=1)
    for slope, layer in zip(slopes, layers, strict=True):
        noise = layer.entered.square() @ layer.weight.square().T
        variance = variance + (slope.square() * noise).sum(dim=1)
    return tuple((lead <= CLOSE * variance.sqrt()).nonzero()[:, 0].tolist())


def routed(x: Tensor, w: MixtureWeights, c: ZayaConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Normed states `[T, C]`, shares `[T, experts + 1]`, and the router's state for the next one.

    The last slot stands for no expert. The notes' form has shares of all, and no state.
    """
    if not c.is_published:
        h, router = normed(x, w.norm, c), w.router
        inner = normed(F.silu(linear(h, router.down)), router.norm, c)
        for layer in (router.first, router.second):
            inner = F.silu(linear(inner, layer))
        logits = F.linear(inner, router.last, router.balancing)
        return h, torch.softmax(logits, dim=1), x[:, :0]
    down, *_, last = _router(x, w, c)
    chosen = _votes(last.given, w.router).argmax(dim=1, keepdim=True)
    shares = torch.softmax(last.given, dim=1)
    only = torch.zeros_like(shares).scatter(1, chosen, shares.gather(1, chosen))
    return down.entered, only, down.given


class _Layer(NamedTuple):
    """One of the published router's: what enters it `[T, in]`, its weight, and what it gives."""

    entered: Tensor
    weight: Tensor
    given: Tensor


def _router(x: Tensor, w: MixtureWeights, c: ZayaConfig) -> list[_Layer]:
    """The published router's layers at hidden states `[T, C]`, its state below them."""
    inner, before = normed(x[:, : c.width], w.norm, c), x[:, c.width :]
    router, made = w.router, list[_Layer]()
    for layer in (router.down, router.first, router.second, Linear(router.last)):
        given = linear(inner, layer)
        if not made and router.carry is not None:
            given = given + before * router.carry
        made.append(_Layer(inner, layer.weight, given))
        inner = F.gelu(given) if len(made) > 1 else normed(given, router.norm, c)
    return made


def _votes(slots: Tensor, w: RouterWeights) -> Tensor:
    """What the published router picks the largest of: the balancing biases count here only."""
    return torch.softmax(slots, dim=1) + w.balancing


def attention(x: Tensor, w: AttentionWeights, c: ZayaConfig, index: int) -> Tensor:
    """Compressed convolutional attention on `[T, C]` (Zyphra, arXiv 2510.04476)."""
    projected = normed(x, w.norm, c) @ w.qkv.T
    half = c.kv_channels // 2
    qk, delayed, current = torch.split(projected, [c.qk_channels, half, half], dim=1)
    v = torch.cat([current, F.pad(delayed[:-1], (0, 0, 1, 0))], dim=1)
    q, k = (unit(part) for part in mean_and_convolution(qk, w, c))
    k = k * w.temperature[:, None, None]
    q, k = (turned(part, None, c, index) for part in (q, k))
    mask = torch.from_numpy(causal_mask(len(x), window=c.layers[index].window))
    mixed = attend(q, k, split_heads(v, c.head), mask, c.head**0.5)
    return merge(x, mixed @ w.o.T, w.residual)


def mean_and_convolution(qk: Tensor, w: AttentionWeights, c: ZayaConfig) -> tuple[Tensor, Tensor]:
    """Queries `[heads, T, d]` and keys `[kv_heads, T, d]` before they are scaled to unit size.

    A query is its mean with its group's key, a key its mean with its group's average query; to
    both the convolutions over this and the two positions before are added.
    """
    length = len(qk)
    q, k = torch.split(qk, [c.q_channels, c.kv_channels], dim=1)
    q = q.reshape(length, c.kv_heads, -1, c.head)
    mean = (q + k.reshape(length, c.kv_heads, 1, c.head)) / 2
    q, k = mean.reshape(length, -1), mean.mean(dim=2).reshape(length, -1)
    if w.convolutions is not None:
        depthwise, grouped = w.convolutions
        once = F.conv1d(F.pad(qk.T, (2, 0)), *depthwise, groups=c.qk_channels)
        twice = F.conv1d(once, *grouped, groups=c.heads + c.kv_heads).T
        q, k = q + twice[:, : c.q_channels], k + twice[:, c.q_channels :]
    return split_heads(q, c.head), split_heads(k, c.head)


def unit(x: Tensor) -> Tensor:
    """Scaled to a mean square of 1 along the last axis, as length sqrt(d)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    shortest: float = torch.finfo(x.dtype).eps
    scaled: Tensor = x * (x.shape[-1] ** 0.5 / length.clamp_min(shortest))
    return scaled


def merge(x: Tensor, update: Tensor, w: Residual) -> Tensor:
    """What a layer gives, joined with the residual stream."""
    return carried(x, w) + update * w.scale + w.bias


def carried(x: Tensor, w: Residual) -> Tensor:
    """What the residual stream goes on with, without what the layer gives."""
    return x * w.residual_scale + w.residual_bias
