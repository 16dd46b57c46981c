"""A decoder's tensors by the names of its file, a shard at a time, and the ANE form of a block.

All projections are 1x1 convolutions. Factors go into weights where that loses no product: a score's
into queries or their norm, the residual's into what leads back to the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families._ane import Chosen, ScaledRMSNorm, pointwise, rotate
from pytest_ane.models.families._blocks import slice_bounds
from pytest_ane.models.families._layout import MASKED
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


class Weights:
    """A source seen by a family's names, in float32 or float16; reads from it and keeps nothing."""

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

    def head(self, index: int) -> tuple[Tensor, Tensor]:
        """Of a vocabulary slice the final norm `[C]` and the projection `[V / slices, C]`."""
        c = self.config
        rows = range(*slice_bounds(c.vocabulary, c.slices, index))
        projection = torch.from_numpy(self._rows("embedding" if c.tied else "head", rows))
        return self._read(self._names.whole("norm"), c.width) + self._names.norm_offset, projection

    def _rows(self, part: str, index: Sequence[int]) -> FloatArray:
        c, name = self.config, self._names.whole(part)
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
            # In one tensor, along its first axis, as in GGUF.
            if "{}" not in self._names.parts["expert_gate"]:
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
        shapes = (inner, width), (inner, width), (width, inner)
        parts = (self._read(n, *s) for n, s in zip((gate, up, down), shapes, strict=True))
        try:
            row = self._read(router, 1, width)
        except SourceError:  # Some GGUF files have it as `[C]`.
            row = self._read(router, width)[None]
        return SharedExpert(*map(Linear, (*parts, row)))

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
    """Rows `[h, d/2, 2, ...]` as `[h, 2, d/2, ...]`: llama.cpp stores some in adjacent pairs."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


class AneAttention(nn.Module):
    """A block's first half: `x [1, C, T, 1]`, `cos`/`sin [1, 1, d, T]`, `mask [1, 1, T, T]` to `y`.

    `y` is as `x`: the residual stream.
    """

    def __init__(self, config: DecoderConfig, index: int, weights: AttentionWeights) -> None:
        super().__init__()
        self.config, w = config, weights
        self.head, self.kv_heads = config.heads_of(index)
        self.turns = config.layers[index].rotary is not None
        # The score's scale goes into q, which keeps q k^T well inside fp16; so does the cap's.
        scale = config.scale / (config.score_cap or 1)
        self.attention_norm = ScaledRMSNorm(w.attention_norm, config.stream_epsilon)
        self.q_proj = projection(w.q if config.head_norms else w.q.scaled(scale))
        self.k_proj = projection(w.k)
        self.v_proj = None if w.v is None else projection(w.v)
        self.q_norm = self.norm(None if w.q_norm is None else w.q_norm * scale, axis=2)
        self.k_norm = self.norm(w.k_norm, axis=2)
        self.v_norm: nn.Module = nn.Identity()
        if config.value_norms:
            self.v_norm = ScaledRMSNorm(None, config.epsilon, axis=2)
        self.o_proj = projection(self.added(w.o))
        self.attention_post_norm = self.post_norm(w.attention_post_norm)

    def norm(self, weight: Tensor | None, axis: int = 1) -> nn.Module:
        if weight is None:
            return nn.Identity()
        return ScaledRMSNorm(weight, self.config.epsilon, axis)

    def post_norm(self, weight: Tensor | None) -> nn.Module:
        return self.norm(None if weight is None else weight * self.addition)

    def added(self, w: Linear) -> Linear:
        return w if self.config.post_norms or self.addition == 1 else w.scaled(self.addition)

    @property
    def addition(self) -> float:
        return self.config.residual_scale * self.config.stream_scale

    def forward(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """`inputs` are `cos` and `sin`, where heads turn, and `mask`, and `write` with states."""
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x), *inputs))
        return x

    def attention(self, h: Tensor, *inputs: Tensor) -> Tensor:
        """Heads grouped by the keys they share: q `[KV, G, d, T]` against k `[KV, 1, d, T]`."""
        c = self.config
        tables, (mask, *write) = (inputs[:2], inputs[2:]) if self.turns else ((), inputs)
        groups = c.heads // self.kv_heads
        q = self.q_norm(self.q_proj(h).reshape(self.kv_heads, groups, self.head, -1))
        k = v = self.k_proj(h).reshape(self.kv_heads, 1, self.head, -1)
        k = self.k_norm(k)
        if tables:
            q, k = rotate(q, *tables), rotate(k, *tables)
        if self.v_proj is not None:
            v = self.v_proj(h).reshape(self.kv_heads, 1, self.head, -1)
        v = self.v_norm(v)
        k, v = self.seen(k, v, *write)
        scores = q.transpose(2, 3) @ k
        if c.score_cap is not None:
            scores = torch.tanh(scores) * c.score_cap
        weights = torch.softmax(scores + mask, dim=-1)
        mixed = v @ weights.transpose(2, 3)
        projected: Tensor = self.o_proj(mixed.reshape(1, c.heads * self.head, -1, 1))
        return projected

    def seen(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that are looked at: those of the call."""
        return k, v


class StatefulAttention(AneAttention):
    """With keys and values kept in states `k_cache`, `v_cache [KV, 1, d, S]`.

    `mask` and `write` are `[1, 1, T, S]`. New columns are put in place by a product with the
    one-hot `write`, for scattering keeps a program off the ANE (rule R002).
    """

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, config: DecoderConfig, index: int, weights: Any) -> None:
        super().__init__(config, index, weights)
        shape = (self.kv_heads, 1, self.head, config.slots(index) or 0)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float16))

    def seen(self, k: Tensor, v: Tensor, *write: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions so far, `[KV, 1, d, S]` each; both states are updated."""
        (place,) = write
        kept = 1 - place.sum(dim=2, keepdim=True)
        keys = self.k_cache * kept + k @ place
        values = self.v_cache * kept + v @ place
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return keys, values


class AneBlock(AneAttention):
    def __init__(self, config: DecoderConfig, index: int, weights: BlockWeights) -> None:
        super().__init__(config, index, weights)
        w, mixture = weights, config.mixture_of(index)
        self.ffn_norm = ScaledRMSNorm(w.ffn_norm, config.stream_epsilon)
        self.router = None if mixture is None else Router(mixture, w.router)
        self.gate_proj, self.up_proj = projection(w.gate), projection(w.up)
        self.down_proj = projection(self.added(w.down))
        self.has_shared = w.shared is not None
        if w.shared is not None:
            self.shared_gate, self.shared_up = projection(w.shared.gate), projection(w.shared.up)
            self.shared_down = projection(self.added(w.shared.down))
            self.shared_router = projection(w.shared.router)
        self.ffn_post_norm = self.post_norm(w.ffn_post_norm)

    def forward(self, x: Tensor, *inputs: Tensor) -> Tensor:
        x = super().forward(x, *inputs)
        h = self.ffn_norm(x)
        gate = activated(self.gate_proj(h), self.config.activation)
        if self.router is not None:
            # 0 times a finite gate is 0, and the convolution that leads down sums the experts.
            gate = weighted(gate, self.router(h))
        fed: Tensor = self.down_proj(gate * self.up_proj(h))
        if self.has_shared:
            fed = fed + self.shared(h)
        given: Tensor = x + self.ffn_post_norm(fed)
        return given

    def shared(self, h: Tensor) -> Tensor:
        inner = activated(self.shared_gate(h), self.config.activation) * self.shared_up(h)
        given: Tensor = self.shared_down(inner) * torch.sigmoid(self.shared_router(h))
        return given


class StatefulBlock(StatefulAttention, AneBlock):
    """The block with states."""


class Router(nn.Module):
    """What each expert counts for, `[1, experts, T, 1]`: exactly 0 if it is not chosen."""

    masked: Tensor
    zero: Tensor

    def __init__(self, mixture: Mixture, weight: Tensor | None) -> None:
        super().__init__()
        assert weight is not None
        self.router = pointwise(weight)
        self.chosen = Chosen(mixture.experts, mixture.top, weight.dtype)
        self.normalized = mixture.normalized
        for name, value in (("masked", MASKED), ("zero", 0.0)):
            self.register_buffer(name, torch.tensor([value], dtype=weight.dtype))

    def forward(self, h: Tensor) -> Tensor:
        logits = self.router(h)
        chosen = self.chosen(logits)
        if self.normalized:
            return torch.softmax(torch.where(chosen, logits, self.masked), dim=1)
        return torch.where(chosen, torch.softmax(logits, dim=1), self.zero)


def weighted(inner: Tensor, shares: Tensor) -> Tensor:
    """Inner channels `[1, experts * F, T, 1]` times each expert's share `[1, experts, T, 1]`."""
    experts = shares.shape[1]
    apart = inner.reshape(1, experts, inner.shape[1] // experts, -1)
    return (apart * shares.reshape(1, experts, 1, -1)).reshape(1, inner.shape[1], -1, 1)


def projection(w: Linear) -> nn.Conv2d:
    return pointwise(w.weight, w.bias)


def activated(x: Tensor, activation: Activation) -> Tensor:
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")
