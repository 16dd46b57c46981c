"""A Llama model in eager torch float32 with a key-value cache: what our decoding is held against.

One token a call, written to be quick: torch's own fused norm, tables and cache made once, the cache
taken by slices, query heads that share keys side by side, so that nothing is repeated or copied.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.families.llama.model import LlamaModel
from pytest_ane.families.llama.weights import BlockWeights, read_block, read_head


class EagerLlama:
    """The whole model, weights in float32, at some position of one sequence."""

    def __init__(self, model: LlamaModel, context: int) -> None:
        self.config = c = model.config
        self.blocks = [read_block(model.source, c, i) for i in range(c.layers)]
        slices = [read_head(model.source, c, i) for i in range(c.slices)]
        self.norm = slices[0].norm
        self.embedding = torch.cat([part.projection for part in slices])
        self.tables = [torch.from_numpy(table) for table in c.rotary.tables(context)]
        shape = (c.layers, c.kv_heads, context, c.head)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.position = 0

    @property
    def weight_bytes(self) -> int:
        """Of all that a token multiplies."""
        blocks = (t for block in self.blocks for t in vars(block).values())
        return sum(int(tensor.nbytes) for tensor in [*blocks, self.embedding])

    def step(self, token: int) -> Tensor:
        """Logits `[V]` after one more token."""
        x = self.embedding[token][None]
        cos, sin = (table[self.position] for table in self.tables)
        self.position += 1
        for i, block in enumerate(self.blocks):
            x = run_block(
                self.config, block, x, cos, sin, self.keys[i], self.values[i], self.position
            )
        x = F.rms_norm(x, self.norm.shape, self.norm, self.config.epsilon)
        return F.linear(x, self.embedding)[0]


def run_block(
    c: LlamaConfig,
    w: BlockWeights,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: int,
) -> Tensor:
    """`x [1, C]` through a block; its key and value go last of the `seen` ones in the cache."""
    h = F.rms_norm(x, w.attention_norm.shape, w.attention_norm, c.epsilon)
    q = rotate(F.linear(h, w.q).view(c.kv_heads, -1, c.head), cos, sin)
    keys[:, seen - 1] = rotate(F.linear(h, w.k).view(c.kv_heads, c.head), cos, sin)
    values[:, seen - 1] = F.linear(h, w.v).view(c.kv_heads, c.head)
    scores = torch.bmm(q, keys[:, :seen].transpose(1, 2)).mul_(c.head**-0.5)
    mixed = torch.bmm(torch.softmax(scores, -1), values[:, :seen])
    x = x + F.linear(mixed.view(1, -1), w.o)
    h = F.rms_norm(x, w.ffn_norm.shape, w.ffn_norm, c.epsilon)
    return x + F.linear(F.silu(F.linear(h, w.gate)) * F.linear(h, w.up), w.down)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half RoPE of `[..., d]` with tables `[d]`."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
