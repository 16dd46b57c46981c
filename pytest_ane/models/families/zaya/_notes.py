"""The float32 reference of the notes' form: attention and soft mixtures as the formulas read.

Nobody else computes this form, so its reference is by the same hand as what is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Reference, Routes, Routing
from pytest_ane.models.families._layout import causal_mask
from pytest_ane.models.families.zaya._config import ZayaConfig
from pytest_ane.models.families.zaya._weights import (
    AttentionWeights,
    MixtureWeights,
    Residual,
    ZayaWeights,
)

T = TypeVar("T")


class NotesReference:
    """Layers on sequences `[T, C]`; experts are read one at a time."""

    def __init__(self, config: ZayaConfig, weights: ZayaWeights) -> None:
        self._config, self._weights = config, weights

    def attention(self, index: int) -> Reference:
        """Compressed convolutional attention (Zyphra, arXiv 2510.04476)."""
        w = self._weights.cca(index)
        return partial(_each, lambda x: self._attention(x, w, index).numpy())

    def mixture(self, index: int) -> Reference:
        """All experts, weighted, each read once; the last slot stands for none."""
        w = self._weights.mixture(index)

        return partial(_together, lambda x: self._mixture(x, w, index).numpy())

    def path(self, index: int, *, attention: bool) -> Reference:
        """What the residual stream goes on with, without what the layer gives."""
        residual = self._weights.residual(index)
        return partial(_each, lambda x: _carried(x, residual).numpy())

    def routed(self, index: int) -> Routing:
        """Experts that have more than an even share of all slots, the largest one first."""
        w = self._weights.mixture(index)

        def tell(x: Tensor) -> Routes:
            _, shares = self._routed(x, w)
            ordered = shares[:, :-1].sort(dim=1, descending=True, stable=True)
            counts = (ordered.values > 1 / shares.shape[1]).sum(dim=1)
            rows = zip(ordered.indices.tolist(), counts.tolist(), strict=True)
            return tuple(tuple(row[:count]) for row, count in rows)

        return partial(_each, tell)

    def _mixture(self, x: Tensor, w: MixtureWeights, index: int) -> Tensor:
        h, shares = self._routed(x, w)
        mixed = torch.zeros_like(h)
        for number in range(shares.shape[1] - 1):
            into, down = self._weights.expert(index, number)
            gate, up = (h @ into.T).chunk(2, dim=1)
            mixed += shares[:, number, None] * (F.silu(gate) * up @ down.T)
        return _merge(x, mixed, w.residual)

    def _routed(self, x: Tensor, w: MixtureWeights) -> tuple[Tensor, Tensor]:
        """Normed states `[T, C]`, and shares `[T, experts + 1]`."""
        h, router = self._normed(x, w.norm), w.router
        inner = self._normed(F.silu(F.linear(h, *router.down)), router.norm)
        for layer in (router.first, router.second):
            inner = F.silu(F.linear(inner, *layer))
        return h, torch.softmax(F.linear(inner, router.last, router.balancing), dim=1)

    def _attention(self, x: Tensor, w: AttentionWeights, index: int) -> Tensor:
        c = self._config
        projected = self._normed(x, w.norm) @ w.qkv.T
        half = c.kv_channels // 2
        qk, delayed, current = torch.split(projected, [c.qk_channels, half, half], dim=1)
        v = torch.cat([current, F.pad(delayed[:-1], (0, 0, 1, 0))], dim=1)
        q, k = (_unit(part) for part in self._mean_and_convolution(qk, w))
        k = k * w.temperature[:, None, None]
        q, k = (self._turned(part, index) for part in (q, k))
        groups = c.heads // c.kv_heads
        k, v = (part.repeat_interleave(groups, 0) for part in (k, _split_heads(v, c.head)))
        scores = q @ k.transpose(1, 2) * c.head**-0.5
        mask = torch.from_numpy(causal_mask(len(x), window=c.layers[index].window))
        mixed = torch.softmax(scores + mask, dim=-1) @ v
        return _merge(x, mixed.transpose(0, 1).reshape(len(x), -1) @ w.o.T, w.residual)

    def _mean_and_convolution(self, qk: Tensor, w: AttentionWeights) -> tuple[Tensor, Tensor]:
        """Queries `[heads, T, d]` and keys `[kv_heads, T, d]` before they are scaled to unit size.

        A query is its mean with its group's key, a key its mean with its group's average query; to
        both the convolutions over this and the two positions before are added.
        """
        c, length = self._config, len(qk)
        q, k = torch.split(qk, [c.q_channels, c.kv_channels], dim=1)
        q = q.reshape(length, c.kv_heads, -1, c.head)
        mean = (q + k.reshape(length, c.kv_heads, 1, c.head)) / 2
        q, k = mean.reshape(length, -1), mean.mean(dim=2).reshape(length, -1)
        if w.convolutions is not None:
            depthwise, grouped = w.convolutions
            once = F.conv1d(F.pad(qk.T, (2, 0)), *depthwise, groups=c.qk_channels)
            twice = F.conv1d(once, *grouped, groups=c.heads + c.kv_heads).T
            q, k = q + twice[:, : c.q_channels], k + twice[:, c.q_channels :]
        return _split_heads(q, c.head), _split_heads(k, c.head)

    def _turned(self, x: Tensor, index: int) -> Tensor:
        """Heads `[*, T, d]` by rotate-half RoPE, of their first channels."""
        rotary = self._config.layers[index].rotary
        assert rotary is not None
        cos, sin = map(torch.from_numpy, self._config.rotaries[rotary].tables(x.shape[1]))
        turning, rest = x[..., : cos.shape[1]], x[..., cos.shape[1] :]
        low, high = turning.chunk(2, dim=-1)
        return torch.cat([turning * cos + torch.cat([-high, low], dim=-1) * sin, rest], dim=-1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._config.epsilon) * weight


def _each(run: Callable[[Tensor], T], sequences: Sequence[FloatArray]) -> list[T]:
    with torch.inference_mode():
        return [run(torch.from_numpy(hidden)) for hidden in sequences]


def _together(
    run: Callable[[Tensor], FloatArray], sequences: Sequence[FloatArray]
) -> list[FloatArray]:
    (rows,) = _each(run, [np.concatenate(sequences)])
    return np.split(rows, np.cumsum([len(x) for x in sequences])[:-1])


def _split_heads(x: Tensor, head: int) -> Tensor:
    return x.reshape(len(x), -1, head).transpose(0, 1)


def _unit(x: Tensor) -> Tensor:
    """Scaled to a mean square of 1 along the last axis, as length sqrt(d)."""
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).eps).mul(x.shape[-1] ** 0.5)


def _merge(x: Tensor, update: Tensor, w: Residual) -> Tensor:
    return _carried(x, w) + update * w.scale + w.bias


def _carried(x: Tensor, w: Residual) -> Tensor:
    return x * w.residual_scale + w.residual_bias
