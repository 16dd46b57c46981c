"""A decoder's tensors, one shard at a time, by the names of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.blocks import slice_bounds
from pytest_ane.families.decoder.config import DecoderConfig, Mixture
from pytest_ane.families.decoder.names import ATTENTION, LINEAR, Names
from pytest_ane.sources import Source


class Linear(NamedTuple):
    """A map `[out, in]` with its bias `[out]`, if it has one."""

    weight: Tensor
    bias: Tensor | None = None

    def scaled(self, factor: float) -> Linear:
        """The map times a number."""
        return Linear(self.weight * factor, None if self.bias is None else self.bias * factor)


@dataclass(frozen=True)
class BlockWeights:
    """One block's float32 tensors; norms are `[C]`, those of heads `[d]`.

    Of a mixture `gate`, `up` and `down` are those of all experts, side by side along their inner
    channels, and `router` is `[experts, C]`.
    """

    attention_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    ffn_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None
    ffn_post_norm: Tensor | None = None
    router: Tensor | None = None


class HeadWeights(NamedTuple):
    """One vocabulary slice of the head: final norm `[C]` and projection `[V / slices, C]`."""

    norm: Tensor
    projection: Tensor


class Weights:
    """A source seen by a family's names; reads from the source and keeps nothing."""

    def __init__(self, source: Source, config: DecoderConfig, names: Names) -> None:
        self._source, self._config, self._names = source, config, names

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        """Rows `[len(ids), C]` of the embedding, unscaled."""
        return self._rows("embedding", ids)

    def block(self, index: int) -> BlockWeights:
        """One block."""
        c = self._config
        mixture = c.mixture_of(index)
        own = [part for part in LINEAR if mixture is None or part in ATTENTION]
        parts: dict[str, Any] = {part: self._linear(index, part) for part in own}
        parts |= {} if mixture is None else self._experts(index, mixture)
        norms = ["attention_norm", "ffn_norm"]
        norms += ["attention_post_norm", "ffn_post_norm"] if c.post_norms else []
        norms += ["q_norm", "k_norm"] if c.head_norms else []
        parts |= {name: self._norm(index, name) for name in norms}
        return BlockWeights(**parts)

    def head(self, index: int) -> HeadWeights:
        """One slice of the head, which is the embedding's where it is tied."""
        c = self._config
        rows = range(*slice_bounds(c.vocabulary, c.slices, index))
        projection = torch.from_numpy(self._rows("embedding" if c.tied else "head", rows))
        norm = self._read(self._names.whole("norm"), c.width) + self._names.norm_offset
        return HeadWeights(norm, projection)

    def _rows(self, part: str, index: Sequence[int]) -> FloatArray:
        c = self._config
        return self._source.rows(self._names.whole(part), index, c.width, c.vocabulary)

    def _norm(self, index: int, part: str) -> Tensor:
        size = self._config.head if part in ("q_norm", "k_norm") else self._config.width
        return self._read(self._names.block(index, part), size) + self._names.norm_offset

    def _linear(self, index: int, part: str) -> Linear:
        c = self._config
        shapes = linear_shapes(c)
        rows, columns = shapes[part]
        fused = next((parts for parts in self._names.fused if part in parts), (part,))
        before = sum(shapes[p][0] for p in fused[: fused.index(part)])
        total = sum(shapes[p][0] for p in fused)
        own = range(before, before + rows)

        def halves(tensor: Tensor) -> Tensor:
            heads = {"q": c.heads, "k": c.kv_heads}.get(part) if self._names.paired else None
            return tensor if heads is None else in_halves(tensor, heads)

        name = self._names.block(index, part)
        if len(fused) == 1:
            weight = self._read(name, rows, columns)
        else:
            weight = torch.from_numpy(self._source.rows(name, own, columns, total))
        if part not in c.biases:
            return Linear(halves(weight))
        bias = self._read(self._names.block(index, part, "bias"), total)[before : before + rows]
        return Linear(halves(weight), halves(bias[:, None])[:, 0])

    def _experts(self, index: int, mixture: Mixture) -> dict[str, Any]:
        c, inner = self._config, mixture.ffn
        shapes = {"gate": (inner, c.width), "up": (inner, c.width), "down": (c.width, inner)}
        parts: dict[str, Any] = {
            part: Linear(
                torch.cat(
                    [
                        self._read(self._names.expert(index, number, part), *shape)
                        for number in range(mixture.experts)
                    ],
                    dim=1 if part == "down" else 0,
                )
            )
            for part, shape in shapes.items()
        }
        router = self._read(self._names.block(index, "router"), mixture.experts, c.width)
        return {**parts, "router": router}

    def _read(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(self._source.tensor(name, shape))


def linear_shapes(c: DecoderConfig) -> Mapping[str, tuple[int, int]]:
    """Rows and columns of a block's maps."""
    queries, keys = c.heads * c.head, c.kv_heads * c.head
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
