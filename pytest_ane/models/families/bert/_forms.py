"""A BERT's tensors and its ANE form (Devlin et al., arXiv 1810.04805).

The form has 1x1 convolutions, norms that fp16 cannot overflow, and a finite mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_ane.models.families._ane import ScaledLayerNorm, cast_to, scaled_to_unit
from pytest_ane.models.families.bert import BertConfig, find_names
from pytest_ane.models.families.decoder._forms import Linear, projection
from pytest_ane.models.sources import Source

Pair: TypeAlias = tuple[Tensor, Tensor]
"""The weight and the bias of a norm or a map."""


@dataclass(frozen=True)
class BlockWeights:
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    attention_norm: Pair
    up: Linear
    down: Linear
    ffn_norm: Pair


class Weights:
    def __init__(self, source: Source, config: BertConfig) -> None:
        self._source, self._config, self._names = source, config, find_names(source)

    def embedding(self, ids: Sequence[int]) -> Tensor:
        """Normed sums `[T, C]` of each token's row, its position's, and the first type's."""
        c = self._config
        total = self._rows("word", ids, c.vocabulary)
        total = total + self._rows("position", range(len(ids)), c.positions)
        total = total + self._rows("type", range(1), c.types) if c.types else total
        return F.layer_norm(total, (c.width,), *self._pair("norm", "", c.width), c.epsilon)

    def block(self, index: int) -> BlockWeights:
        width, ffn = self._config.width, self._config.ffn
        return BlockWeights(
            *self._qkv(index, width),
            o=Linear(*self._pair("o", index, width, width)),
            attention_norm=self._pair("attention_norm", index, width),
            up=Linear(*self._pair("up", index, ffn, width)),
            down=Linear(*self._pair("down", index, width, ffn)),
            ffn_norm=self._pair("ffn_norm", index, width),
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

    def _pair(self, part: str, index: int | str, *shape: int) -> Pair:
        weight, bias = self._names.tensors(part, index)
        read = self._source.tensor
        return torch.from_numpy(read(weight, shape)), torch.from_numpy(read(bias, shape[:1]))


def activated(x: Tensor, c: BertConfig) -> Tensor:
    if c.activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="none" if c.activation == "erf" else "tanh")


class AneBlock(nn.Module):
    """One block: `x [1, C, N, 1]` and `mask [1, 1, 1, N]`, added to scores, to `y` as `x`."""

    def __init__(self, config: BertConfig, w: BlockWeights) -> None:
        super().__init__()
        self.config = config
        # The score's scale goes into q, which keeps q k^T well inside fp16.
        self.q_proj = projection(w.q.scaled(config.head**-0.5))
        self.k_proj, self.v_proj, self.o_proj = map(projection, (w.k, w.v, w.o))
        self.attention_norm = ScaledLayerNorm(*w.attention_norm, config.epsilon)
        self.up_proj, self.down_proj = projection(w.up), projection(w.down)
        self.ffn_norm = ScaledLayerNorm(*w.ffn_norm, config.epsilon)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        fed = self.down_proj(activated(self.up_proj(x), self.config))
        y: Tensor = self.ffn_norm(x + fed)
        return y

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        """Heads `[H, 1, d, N]`; a key that is padding has no weight."""
        c = self.config
        q, k, v = (
            project(x).reshape(c.heads, 1, c.head, -1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = torch.softmax(q.transpose(2, 3) @ k + mask, dim=-1)
        mixed = v @ weights.transpose(2, 3)
        projected: Tensor = self.o_proj(mixed.reshape(1, c.width, -1, 1))
        return projected


class AnePooling(nn.Module):
    """`x [1, C, N, 1]` and, for the mean, `mask [1, 1, 1, N]` to one embedding `y [1, C, 1, 1]`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        c = self.config
        if mask:
            # The mask's softmax is 1 / T at the text's T positions and 0 at padding: no sum of
            # hidden states, which might overflow, comes before the division.
            shares = torch.softmax(mask[0], dim=-1).transpose(2, 3)
            y = (x.permute(0, 3, 1, 2) @ shares).permute(0, 2, 1, 3)
        else:
            y = x[:, :, :1]
        if not c.normalized:
            return y
        return cast_to(scaled_to_unit(y, 0.0) * c.width**-0.5, x.dtype)
