"""The float32 reference: attention, mixture of experts and head as the formulas read.

All take several whole sequences, so that what does not fit into memory is read once for all.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.base import Reference, Routes, Routing
from pytest_ane.families.layout import Rotary, causal_mask
from pytest_ane.families.reference import (
    attend,
    rms_norm,
    rotate,
    run_each,
    run_together,
    split_heads,
)
from pytest_ane.families.zaya.config import ZayaConfig
from pytest_ane.families.zaya.weights import (
    AttentionWeights,
    Reader,
    Residual,
    RouterWeights,
    head_rows,
    read_final_norm,
)
from pytest_ane.sources import Source


def attention(source: Source, config: ZayaConfig, index: int) -> Reference:
    """An attention layer, each sequence from position 0."""
    weights = Reader(source, config, index, np.float32).attention()
    return partial(run_each, lambda x: attended(x, weights, config))


def mixture(source: Source, config: ZayaConfig, index: int) -> Reference:
    """A mixture of experts; of its experts some rows at a time are in memory."""
    reader = Reader(source, config, index, np.float32)
    weights = reader.mixture()

    def mix(x: Tensor) -> Tensor:
        h = rms_norm(x, config.epsilon) * weights.norm
        chosen = route(h, weights.router, config)
        mixed = torch.zeros_like(x)
        for number in range(config.experts):
            gate, up = reader.project(h, number, "linear_fc1").chunk(2, dim=1)
            projected = reader.project(F.silu(gate) * up, number, "linear_fc2")
            mixed += chosen[:, number, None] * projected
        return merge(x, mixed, weights.residual)

    return partial(run_together, mix)


def residual(source: Source, config: ZayaConfig, index: int) -> Reference:
    """What the residual path alone gives of hidden states `[T, C]`, as a function."""
    w = Reader(source, config, index, np.float32).residual()
    return partial(run_together, lambda x: carried(x, w))


def routing(source: Source, config: ZayaConfig, index: int) -> Routing:
    """Experts whose weight is above 1 / (experts + 1), the even share of all slots.

    All experts run; those below say little. Where most weight is on no expert, it may be none.
    """
    weights = Reader(source, config, index, np.float32).mixture()

    def shares(x: Tensor) -> Tensor:
        return route(rms_norm(x, config.epsilon) * weights.norm, weights.router, config)

    def active(rows: FloatArray) -> Routes:
        order = np.argsort(-rows[:, : config.experts], axis=1, kind="stable")
        chosen = np.take_along_axis(rows, order, axis=1) > 1 / rows.shape[1]
        return tuple(tuple(o[c].tolist()) for o, c in zip(order, chosen, strict=True))

    return lambda sequences: [active(rows) for rows in run_together(shares, sequences)]


def head(source: Source, config: ZayaConfig, index: int) -> Reference:
    """Logits `[T, V / slices]` of a vocabulary slice for each sequence `[T, C]`."""
    norm = read_final_norm(source, config, np.float32)

    def logits(x: Tensor) -> Tensor:
        h = rms_norm(x, config.epsilon) * norm
        return torch.cat(
            [h @ torch.from_numpy(rows).T for rows in head_rows(source, config, index)], dim=1
        )

    return partial(run_together, logits)


def route(h: Tensor, w: RouterWeights, config: ZayaConfig) -> Tensor:
    """Weights `[T, experts + 1]` of normed states `[T, C]`; the last slot stands for no expert."""
    inner = rms_norm(F.silu(F.linear(h, *w.down)), config.epsilon) * w.norm
    inner = F.silu(F.linear(inner, *w.first))
    inner = F.silu(F.linear(inner, *w.second))
    return torch.softmax(F.linear(inner, w.last, w.balancing), dim=1)


def attended(x: Tensor, w: AttentionWeights, config: ZayaConfig) -> Tensor:
    """Compressed convolutional attention on `[T, C]` (Zyphra, arXiv 2510.04476)."""
    c, length = config, len(x)
    projected = (rms_norm(x, c.epsilon) * w.norm) @ w.qkv.T
    half = c.kv_channels // 2
    qk, delayed, current = torch.split(projected, [c.qk_channels, half, half], dim=1)
    v = torch.cat([current, F.pad(delayed[:-1], (0, 0, 1, 0))], dim=1)
    q, k = (unit(part) for part in mean_and_convolution(qk, w, c))
    tables = [torch.from_numpy(table) for table in Rotary.plain(c.rotary, c.theta).tables(length)]
    q, k = rotate(q, *tables), rotate(k * w.temperature[:, None, None], *tables)
    mask = torch.from_numpy(causal_mask(length))
    mixed = attend(q, k, split_heads(v, c.head), mask, c.head**0.5)
    return merge(x, mixed @ w.o.T, w.residual)


def mean_and_convolution(
    qk: Tensor, w: AttentionWeights, config: ZayaConfig
) -> tuple[Tensor, Tensor]:
    """Queries `[heads, T, d]` and keys `[kv_heads, T, d]` before they are scaled to unit size.

    A query is its mean with its group's key, a key its mean with its group's average query; to
    both the convolutions over this and the two positions before are added.
    """
    c, length = config, len(qk)
    q, k = torch.split(qk, [c.q_channels, c.kv_channels], dim=1)
    q = q.reshape(length, c.kv_heads, -1, c.head)
    mean = (q + k.reshape(length, c.kv_heads, 1, c.head)) / 2
    q, k = mean.reshape(length, -1), mean.mean(dim=2).reshape(length, -1)
    if w.convolutions is not None:
        (depthwise, bias0), (grouped, bias1) = w.convolutions
        padded = F.pad(qk.T, (2, 0))
        once = F.conv1d(padded, depthwise, bias0, groups=c.qk_channels)
        twice = F.conv1d(once, grouped, bias1, groups=c.heads + c.kv_heads).T
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
