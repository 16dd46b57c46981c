"""A decoder's tensors by the names of its file, a shard at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families._blocks import slice_bounds
from pytest_ane.models.families.decoder._config import (
    SHARED,
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

    def head(self, index: int) -> HeadWeights:
        c = self.config
        rows = range(*slice_bounds(c.vocabulary, c.slices, index))
        projection = torch.from_numpy(self._rows("embedding" if c.tied else "head", rows))
        norm = self._read(self._names.whole("norm"), c.width) + self._names.norm_offset
        return HeadWeights(norm, projection)

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
