"""A BERT's tensors, one shard at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.bert.config import BertConfig, find_root
from pytest_ane.families.decoder.weights import Linear
from pytest_ane.sources import Source


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
    """A source by the published names; reads from the source and keeps nothing."""

    def __init__(self, source: Source, config: BertConfig) -> None:
        self._source, self._config = source, config
        self._root = find_root(source)
        old = f"{self._root}embeddings.LayerNorm.gamma" in source.names
        self._norm_names = ("gamma", "beta") if old else ("weight", "bias")

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        """Sums `[T, C]` of each token's row, its position's, and that of the first type."""
        c = self._config
        word = self._rows("word", ids, c.vocabulary)
        position = self._rows("position", range(len(ids)), c.positions)
        total: FloatArray = word + position + self._rows("token_type", range(1), c.types)
        return total

    def embedding_norm(self) -> Norm:
        """What the sums go through."""
        return self._norm("embeddings")

    def block(self, index: int) -> BlockWeights:
        """One block."""
        c, layer = self._config, f"encoder.layer.{index}"
        own = f"{layer}.attention"
        return BlockWeights(
            q=self._linear(f"{own}.self.query", c.width, c.width),
            k=self._linear(f"{own}.self.key", c.width, c.width),
            v=self._linear(f"{own}.self.value", c.width, c.width),
            o=self._linear(f"{own}.output.dense", c.width, c.width),
            attention_norm=self._norm(f"{own}.output"),
            up=self._linear(f"{layer}.intermediate.dense", c.ffn, c.width),
            down=self._linear(f"{layer}.output.dense", c.width, c.ffn),
            ffn_norm=self._norm(f"{layer}.output"),
        )

    def _rows(self, part: str, index: Sequence[int], height: int) -> FloatArray:
        name = f"{self._root}embeddings.{part}_embeddings.weight"
        return self._source.rows(name, index, self._config.width, height)

    def _linear(self, name: str, rows: int, columns: int) -> Linear:
        return Linear(self._read(f"{name}.weight", rows, columns), self._read(f"{name}.bias", rows))

    def _norm(self, name: str) -> Norm:
        width = self._config.width
        return Norm(*(self._read(f"{name}.LayerNorm.{x}", width) for x in self._norm_names))

    def _read(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(self._source.tensor(f"{self._root}{name}", shape))
