"""A Llama model in eager torch float32 with a key-value cache: what our decoding is held against.

One token a call, written to be quick: torch's own fused norm, tables and cache made once, the cache
taken by slices, query heads that share keys side by side, so that nothing is repeated or copied.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.models.families.decoder import DecoderConfig, DecoderModel
from pytest_ane.models.families.decoder._forms import BlockWeights

MAPS = ("q", "k", "v", "o", "gate", "up", "down")


class EagerLlama:
    """The whole model, weights in float32, at some position of one sequence."""

    def __init__(self, model: DecoderModel, context: int) -> None:
        self.config = c = model.config
        self.blocks = [model.weights.block(i) for i in range(len(c.layers))]
        norms, projections = zip(*map(model.weights.head, range(c.slices)), strict=True)
        self.norm, self.embedding = norms[0], torch.cat(projections)
        self.tables = [torch.from_numpy(table) for table in c.rotaries[0].tables(context)]
        shape = (len(c.layers), c.kv_heads, context, c.head)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        self.position = 0

    @property
    def weight_bytes(self) -> int:
        """Of all that a token multiplies."""
        maps = (getattr(b, part) for b in self.blocks for part in MAPS)
        norms = (norm for b in self.blocks for norm in (b.attention_norm, b.ffn_norm))
        tensors = [*(m.weight for m in maps), *norms, self.embedding]
        return sum(int(tensor.nbytes) for tensor in tensors)

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
    c: DecoderConfig,
    w: BlockWeights,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: int,
) -> Tensor:
    """`x [1, C]` through a block; its key and value go last of the `seen` ones in the cache."""
    assert w.v is not None
    h = F.rms_norm(x, w.attention_norm.shape, w.attention_norm, c.epsilon)
    q = rotate(F.linear(h, w.q.weight).view(c.kv_heads, -1, c.head), cos, sin)
    keys[:, seen - 1] = rotate(F.linear(h, w.k.weight).view(c.kv_heads, c.head), cos, sin)
    values[:, seen - 1] = F.linear(h, w.v.weight).view(c.kv_heads, c.head)
    scores = torch.bmm(q, keys[:, :seen].transpose(1, 2)).mul_(c.head**-0.5)
    mixed = torch.bmm(torch.softmax(scores, -1), values[:, :seen])
    x = x + F.linear(mixed.view(1, -1), w.o.weight)
    h = F.rms_norm(x, w.ffn_norm.shape, w.ffn_norm, c.epsilon)
    return x + fed(w, h)


def fed(w: BlockWeights, h: Tensor) -> Tensor:
    """The gated network."""
    gated = F.silu(F.linear(h, w.gate.weight)) * F.linear(h, w.up.weight)
    return F.linear(gated, w.down.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half RoPE of `[..., d]` with tables `[d]`."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
