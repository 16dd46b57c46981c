"""A decoder's tensors, one shard at a time, by the names of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import SourceError
from pytest_ane.families.blocks import slice_bounds
from pytest_ane.families.decoder.config import DecoderConfig, Mixture
from pytest_ane.families.decoder.names import FEED_FORWARD, SHARED, Names
from pytest_ane.sources import Source


class Linear(NamedTuple):
    """A map `[out, in]` with its bias `[out]`, if it has one."""

    weight: Tensor
    bias: Tensor | None = None

    def scaled(self, factor: float) -> Linear:
        """The map times a number."""
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
    v: Linear | None
    o: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None


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
        self,
        source: Source,
        config: DecoderConfig,
        names: Names,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.config = config
        self._source, self._names, self._dtype = source, names, dtype

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        """Rows `[len(ids), C]` of the embedding, unscaled."""
        return self._rows("embedding", ids)

    def attention(self, index: int) -> AttentionWeights:
        """One block's attention."""
        return AttentionWeights(**self._attention(index))

    def block(self, index: int) -> BlockWeights:
        """One block."""
        c = self.config
        mixture = c.mixture_of(index)
        network: dict[str, Any] = (
            {part: self._linear(index, part) for part in FEED_FORWARD}
            if mixture is None
            else self._experts(index, mixture)
        )
        norms = ("ffn_norm", *(("ffn_post_norm",) if c.post_norms else ()))
        network |= {name: self._norm(index, name) for name in norms}
        return BlockWeights(**self._attention(index), **network)

    def head(self, index: int) -> HeadWeights:
        """One slice of the head, which is the embedding's where it is tied."""
        c = self.config
        rows = range(*slice_bounds(c.vocabulary, c.slices, index))
        projection = torch.from_numpy(self._rows("embedding" if c.tied else "head", rows))
        norm = self._read(self._names.whole("norm"), c.width) + self._names.norm_offset
        return HeadWeights(norm, projection)

    def _rows(self, part: str, index: Sequence[int]) -> FloatArray:
        c = self.config
        name = self._names.whole(part)
        return self._source.rows(name, index, c.width, c.vocabulary, self._dtype)

    def _attention(self, index: int) -> dict[str, Any]:
        c = self.config
        parts: dict[str, Any] = {part: self._linear(index, part) for part in ("q", "k", "o")}
        parts["v"] = None if c.layers[index].shared else self._linear(index, "v")
        norms = ["attention_norm"]
        norms += ["attention_post_norm"] if c.post_norms else []
        norms += ["q_norm", "k_norm"] if c.head_norms else []
        return parts | {name: self._norm(index, name) for name in norms}

    def _norm(self, index: int, part: str) -> Tensor:
        size = self.config.width
        if part in ("q_norm", "k_norm"):
            size, _ = self.config.heads_of(index)
        return self._read(self._names.block(index, part), size) + self._names.norm_offset

    def _linear(self, index: int, part: str) -> Linear:
        c = self.config
        shapes = linear_shapes(c, index)
        rows, columns = shapes[part]
        fused = next((parts for parts in self._names.fused if part in parts), (part,))
        before = sum(shapes[p][0] for p in fused[: fused.index(part)])
        total = sum(shapes[p][0] for p in fused)
        own = range(before, before + rows)

        def halves(tensor: Tensor) -> Tensor:
            heads = (
                {"q": c.heads, "k": c.heads_of(index)[1]}.get(part) if self._names.paired else None
            )
            return tensor if heads is None else in_halves(tensor, heads)

        name = self._names.block(index, part)
        if len(fused) == 1:
            weight = self._read(name, rows, columns)
        else:
            weight = torch.from_numpy(self._source.rows(name, own, columns, total, self._dtype))
        if part not in c.biases:
            return Linear(halves(weight))
        bias = self._read(self._names.block(index, part, "bias"), total)[before : before + rows]
        return Linear(halves(weight), halves(bias[:, None])[:, 0])

    def _experts(self, index: int, mixture: Mixture) -> dict[str, Any]:
        c, inner = self.config, mixture.ffn
        shapes = {"gate": (inner, c.width), "up": (inner, c.width), "down": (c.width, inner)}
        parts: dict[str, Any] = {
            part: Linear(torch.cat(self._each_expert(index, part, shape), int(part == "down")))
            for part, shape in shapes.items()
        }
        router = self._read(self._names.block(index, "router"), mixture.experts, c.width)
        return {**parts, "router": router, "shared": self._shared(index, mixture.shared)}

    def _shared(self, index: int, inner: int | None) -> SharedExpert | None:
        if inner is None:
            return None
        width = self.config.width
        shapes = ((inner, width), (inner, width), (width, inner))
        *names, router = (self._names.block(index, part) for part in SHARED)
        read = (self._read(name, *shape) for name, shape in zip(names, shapes, strict=True))
        gate, up, down = map(Linear, read)
        return SharedExpert(gate, up, down, Linear(self._row(router, width)))

    def _row(self, name: str, width: int) -> Tensor:
        """A matrix `[1, C]`, which some GGUF files have as `[C]`."""
        with suppress(SourceError):
            return self._read(name, 1, width)
        return self._read(name, width)[None]

    def _each_expert(self, index: int, part: str, shape: tuple[int, int]) -> list[Tensor]:
        mixture = self.config.mixture_of(index)
        assert mixture is not None
        names = [self._names.expert(index, number, part) for number in range(mixture.experts)]
        if self._names.stacked:
            return list(self._read(names[0], mixture.experts, *shape))
        return [self._read(name, *shape) for name in names]

    def _read(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(self._source.tensor(name, shape, self._dtype))


def linear_shapes(c: DecoderConfig, index: int) -> Mapping[str, tuple[int, int]]:
    """Rows and columns of a block's maps."""
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


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of adjacent pairs as those of halves: `[h, d/2, 2, in]` to `[h, 2, d/2, in]`.

    llama.cpp's converter stores Q and K of some architectures for a RoPE over adjacent pairs.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
