"""A decoder's tensors by the names of its file, a shard at a time, and its float32 reference.

The reference computes a block and the head as the published formulas read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Routes
from pytest_ane.models.families._blocks import slice_bounds
from pytest_ane.models.families._layout import causal_mask
from pytest_ane.models.families._reference import (
    attend,
    close_choices,
    rms_norm,
    rotate,
    softly_capped,
    split_heads,
)
from pytest_ane.models.families.decoder._config import (
    SHARED,
    Activation,
    DecoderConfig,
    Mixture,
    Names,
    parts_of,
)
from pytest_ane.models.sources import Source


class Linear(NamedTuple):
    """A map `[out, in]` with its bias `[out]`, if it has one."""

    weight: Tensor
    bias: Tensor | None = None

    def scaled(self, factor: float) -> Linear:
        return Linear(self.weight * factor, None if self.bias is None else self.bias * factor)


class SharedExpert(NamedTuple):
    """The expert of all positions, and the row `[1, C]` that weighs it."""

    gate: Linear
    up: Linear
    down: Linear
    router: Linear


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """The tensors of a block's attention; norms are `[C]`, those of heads `[d]`.

    `v` is None where values are the keys.
    """

    attention_norm: Tensor
    q: Linear
    k: Linear
    v: Linear | None = None
    o: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None


_OF_ATTENTION = {field.name for field in fields(AttentionWeights)}


@dataclass(frozen=True, kw_only=True)
class BlockWeights(AttentionWeights):
    """One block's tensors.

    Of a mixture `gate`, `up` and `down` are those of all experts, side by side along their inner
    channels, and `router` is `[experts, C]`.
    """

    ffn_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear
    ffn_post_norm: Tensor | None = None
    router: Tensor | None = None
    shared: SharedExpert | None = None


class HeadWeights(NamedTuple):
    """One vocabulary slice of the head: final norm `[C]` and projection `[V / slices, C]`."""

    norm: Tensor
    projection: Tensor


class Weights:
    """A source seen by a family's names; reads from it and keeps nothing.

    Args:
        dtype: of tensors, `np.float32` or `np.float16`.
    """

    def __init__(
        self, source: Source, config: DecoderConfig, names: Names, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self.config = config
        self._source, self._names, self._dtype = source, names, dtype

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        return self._rows("embedding", ids)

    def attention(self, index: int) -> AttentionWeights:
        parts = [part for part in parts_of(self.config, index) if part in _OF_ATTENTION]
        return AttentionWeights(**self._parts(index, parts))

    def block(self, index: int) -> BlockWeights:
        mixture = self.config.mixture_of(index)
        experts = {} if mixture is None else self._experts(index, mixture)
        return BlockWeights(**self._parts(index, parts_of(self.config, index)), **experts)

    def head(self, index: int) -> HeadWeights:
        c = self.config
        rows = range(*slice_bounds(c.vocabulary, c.slices, index))
        projection = torch.from_numpy(self._rows("embedding" if c.tied else "head", rows))
        norm = self._read(self._names.whole("norm"), c.width) + self._names.norm_offset
        return HeadWeights(norm, projection)

    def _rows(self, part: str, index: Sequence[int]) -> FloatArray:
        c = self.config
        name = self._names.whole(part)
        return self._source.rows(name, index, c.width, c.vocabulary, self._dtype)

    def _parts(self, index: int, parts: Sequence[str]) -> dict[str, Any]:
        norms = {part: self._norm(index, part) for part in parts if part.endswith("norm")}
        return norms | {part: self._linear(index, part) for part in parts if part not in norms}

    def _norm(self, index: int, part: str) -> Tensor:
        size = self.config.width
        if part in ("q_norm", "k_norm"):
            size, _ = self.config.heads_of(index)
        return self._read(self._names.block(index, part), size) + self._names.norm_offset

    def _linear(self, index: int, part: str) -> Linear:
        c, shapes = self.config, linear_shapes(self.config, index)
        rows, columns = shapes[part]
        fused = next((parts for parts in self._names.fused if part in parts), (part,))
        before = sum(shapes[p][0] for p in fused[: fused.index(part)])
        total = sum(shapes[p][0] for p in fused)
        own, name = range(before, before + rows), self._names.block(index, part)
        bias = None
        if len(fused) == 1:
            weight = self._read(name, rows, columns)
        else:
            weight = torch.from_numpy(self._source.rows(name, own, columns, total, self._dtype))
        if part in c.biases:
            bias = self._read(self._names.block(index, part, "bias"), total)[own.start : own.stop]
        heads = {"q": c.heads, "k": c.heads_of(index)[1]}
        if self._names.paired and part in heads:
            weight = in_halves(weight, heads[part])
            bias = None if bias is None else in_halves(bias, heads[part])
        return Linear(weight, bias)

    def _experts(self, index: int, mixture: Mixture) -> dict[str, Any]:
        width, inner, count = self.config.width, mixture.ffn, mixture.experts

        def bank(part: str, *shape: int) -> Linear:
            names = [self._names.expert(index, number, part) for number in range(count)]
            if self._names.stacked:
                each = list(self._read(names[0], count, *shape))
            else:
                each = [self._read(name, *shape) for name in names]
            return Linear(torch.cat(each, int(part == "down")))

        return {
            "gate": bank("gate", inner, width),
            "up": bank("up", inner, width),
            "down": bank("down", width, inner),
            "router": self._read(self._names.block(index, "router"), count, width),
            "shared": self._shared(index, mixture.shared),
        }

    def _shared(self, index: int, inner: int | None) -> SharedExpert | None:
        if inner is None:
            return None
        width = self.config.width
        gate, up, down, router = (self._names.block(index, part) for part in SHARED)
        return SharedExpert(
            Linear(self._read(gate, inner, width)),
            Linear(self._read(up, inner, width)),
            Linear(self._read(down, width, inner)),
            Linear(self._row(router, width)),
        )

    def _row(self, name: str, width: int) -> Tensor:
        """A matrix `[1, C]`, which some GGUF files have as `[C]`."""
        with suppress(SourceError):
            return self._read(name, 1, width)
        return self._read(name, width)[None]

    def _layer_tensor(self, index: int, name: str, *shape: int) -> Tensor:
        return self._read(self._names.own_of(index, name), *shape)

    def _read(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(self._source.tensor(name, shape, self._dtype))


def linear_shapes(c: DecoderConfig, index: int) -> Mapping[str, tuple[int, int]]:
    head, kv_heads = c.heads_of(index)
    queries, keys = c.heads * head, kv_heads * head
    return {
        "q": (queries, c.width),
        "k": (keys, c.width),
        "v": (keys, c.width),
        "o": (c.width, queries),
        "gate": (c.ffn, c.width),
        "up": (c.ffn, c.width),
        "down": (c.width, c.ffn),
    }


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Rows of adjacent pairs as those of halves: `[h, d/2, 2, ...]` to `[h, 2, d/2, ...]`.

    llama.cpp's converter stores Q and K of some architectures for a RoPE over adjacent pairs.
    """
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


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
