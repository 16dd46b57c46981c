"""A BERT's tensors, one shard at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ane.models.families.bert.config import BertConfig, find_names
from pytest_ane.models.families.decoder._weights import Linear
from pytest_ane.models.sources import Source


class Norm(NamedTuple):
    """A layer norm's weight and bias, `[C]` each."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class BlockWeights:
    """One block's float32 tensors."""

    q: Linear
    k: Linear
    v: Linear
    o: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    ffn_norm: Norm


class Weights:
    """A source by the names of its file; reads from the source and keeps nothing."""

    def __init__(self, source: Source, config: BertConfig) -> None:
        self._source, self._config, self._names = source, config, find_names(source)

    def embedding(self, ids: Sequence[int]) -> Tensor:
        """Sums `[T, C]` of each token's row, its position's, and that of the first type."""
        c = self._config
        total = self._rows("word", ids, c.vocabulary)
        total = total + self._rows("position", range(len(ids)), c.positions)
        return total + self._rows("type", range(1), c.types) if c.types else total

    def embedding_norm(self) -> Norm:
        """What the sums go through."""
        return Norm(*self._pair("norm", "", self._config.width))

    def block(self, index: int) -> BlockWeights:
        width, ffn = self._config.width, self._config.ffn
        return BlockWeights(
            *self._qkv(index, width),
            o=Linear(*self._pair("o", index, width, width)),
            attention_norm=Norm(*self._pair("attention_norm", index, width)),
            up=Linear(*self._pair("up", index, ffn, width)),
            down=Linear(*self._pair("down", index, width, ffn)),
            ffn_norm=Norm(*self._pair("ffn_norm", index, width)),
        )

    def _qkv(self, index: int, width: int) -> tuple[Linear, Linear, Linear]:
        if self._names.tensors("qkv", index)[0] in self._source.names:
            parts = [t.chunk(3) for t in self._pair("qkv", index, 3 * width, width)]
            q, k, v = map(Linear, *parts)
        else:
            q, k, v = (Linear(*self._pair(part, index, width, width)) for part in "qkv")
        return q, k, v

    def _rows(self, table: str, index: Sequence[int], height: int) -> Tensor:
        (name,) = self._names.tensors(table)
        return torch.from_numpy(self._source.rows(name, index, self._config.width, height))

    def _pair(self, part: str, index: int | str, *shape: int) -> Iterator[Tensor]:
        for name, extent in zip(self._names.tensors(part, index), (shape, shape[:1]), strict=True):
            yield torch.from_numpy(self._source.tensor(name, extent))
