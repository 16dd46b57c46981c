"""The ANE form of a Llama block and head: all projections are 1x1 convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.families.ane import ScaledRMSNorm, pointwise
from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.families.llama.weights import BlockWeights, HeadWeights


class AneBlock(nn.Module):
    """One block: `x [1, C, T, 1]`, `cos`/`sin [1, 1, d, T]`, `mask [1, 1, T, T]` to `y` as `x`."""

    def __init__(self, config: LlamaConfig, weights: BlockWeights) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = ScaledRMSNorm(weights.attention_norm, config.epsilon)
        # The score's 1/sqrt(d) goes into q, which keeps q k^T well inside fp16.
        self.q_proj = pointwise(weights.q * config.head**-0.5)
        self.k_proj, self.v_proj = pointwise(weights.k), pointwise(weights.v)
        self.o_proj = pointwise(weights.o)
        self.ffn_norm = ScaledRMSNorm(weights.ffn_norm, config.epsilon)
        self.gate_proj, self.up_proj = pointwise(weights.gate), pointwise(weights.up)
        self.down_proj = pointwise(weights.down)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor | None = None
    ) -> Tensor:
        """Attention and feed-forward, each added to the residual stream."""
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, write)
        h = self.ffn_norm(x)
        fed: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))
        return x + fed

    def attention(
        self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor | None
    ) -> Tensor:
        """Heads grouped by the keys they share: q `[KV, G, d, T]` against k `[KV, 1, d, T]`."""
        c = self.config
        q = _rotate(self.q_proj(h).reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1), cos, sin)
        k = _rotate(self.k_proj(h).reshape(c.kv_heads, 1, c.head, -1), cos, sin)
        v = self.v_proj(h).reshape(c.kv_heads, 1, c.head, -1)
        if write is not None:
            k, v = self.remembered(k, v, write)
        weights = torch.softmax(q.transpose(2, 3) @ k + mask, dim=-1)
        mixed = v @ weights.transpose(2, 3)
        projected: Tensor = self.o_proj(mixed.reshape(1, c.heads * c.head, -1, 1))
        return projected

    def remembered(self, k: Tensor, v: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions so far, given the new ones."""
        raise NotImplementedError


class StatefulBlock(AneBlock):
    """The block with keys and values kept in states `k_cache`, `v_cache [KV, 1, d, S]`.

    `mask` and `write` are `[1, 1, T, S]`. New columns are put in place by a product with the
    one-hot `write`, for scattering keeps a program off the ANE (rule R002).
    """

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, config: LlamaConfig, weights: BlockWeights) -> None:
        super().__init__(config, weights)
        shape = (config.kv_heads, 1, config.head, config.context or 0)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float16))

    def remembered(self, k: Tensor, v: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
        """Update both states; `[KV, 1, d, S]` each."""
        kept = 1 - write.sum(dim=2, keepdim=True)
        keys = self.k_cache * kept + k @ write
        values = self.v_cache * kept + v @ write
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return keys, values


class AneHead(nn.Module):
    """Final norm and one vocabulary slice: `x [1, C, T, 1]` to logits `y [1, V / slices, T, 1]`."""

    def __init__(self, config: LlamaConfig, weights: HeadWeights) -> None:
        super().__init__()
        self.norm = ScaledRMSNorm(weights.norm, config.epsilon)
        self.head = pointwise(weights.projection)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the slice."""
        logits: Tensor = self.head(self.norm(x))
        return logits


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=2)
    return x * cos + torch.cat([-high, low], dim=2) * sin
