"""The ANE form of a Llama block: all projections are 1x1 convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.families.ane import ScaledRMSNorm, pointwise, rotate
from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.families.llama.weights import BlockWeights


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
        q = rotate(self.q_proj(h).reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1), cos, sin)
        k = rotate(self.k_proj(h).reshape(c.kv_heads, 1, c.head, -1), cos, sin)
        v = self.v_proj(h).reshape(c.kv_heads, 1, c.head, -1)
        k, v = self.seen(k, v, write)
        weights = torch.softmax(q.transpose(2, 3) @ k + mask, dim=-1)
        mixed = v @ weights.transpose(2, 3)
        projected: Tensor = self.o_proj(mixed.reshape(1, c.heads * c.head, -1, 1))
        return projected

    def seen(self, k: Tensor, v: Tensor, write: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values that are looked at: those of the call."""
        return k, v


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

    def seen(self, k: Tensor, v: Tensor, write: Tensor | None) -> tuple[Tensor, Tensor]:
        """Those of all positions so far, `[KV, 1, d, S]` each; both states are updated."""
        assert write is not None
        kept = 1 - write.sum(dim=2, keepdim=True)
        keys = self.k_cache * kept + k @ write
        values = self.v_cache * kept + v @ write
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return keys, values
