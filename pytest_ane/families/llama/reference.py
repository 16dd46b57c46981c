"""The float32 reference: a Llama block and head as the published formulas read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.families.llama.weights import BlockWeights, HeadWeights


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm over the last axis: x / sqrt(mean(x^2) + eps) * weight.

    Source: Zhang and Sennrich, arXiv 1910.07467.
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half RoPE of `[heads, T, d]` with tables `[T, d]`."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class ReferenceBlock(torch.nn.Module):
    """One block on hidden states `[T, C]` in float32."""

    def __init__(self, config: LlamaConfig, weights: BlockWeights) -> None:
        super().__init__()
        self.config, self.weights = config, weights

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """`x [T, C]`, tables `[T, d]`, additive mask `[T, T]`; returns `[T, C]`."""
        w, eps = self.weights, self.config.epsilon
        x = x + self.attention(rms_norm(x, w.attention_norm, eps), cos, sin, mask)
        h = rms_norm(x, w.ffn_norm, eps)
        return x + (F.silu(h @ w.gate.T) * (h @ w.up.T)) @ w.down.T

    def attention(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Causal attention with grouped queries on normed states `[T, C]`."""
        c, w = self.config, self.weights
        q = rotate(_heads(h @ w.q.T, c.heads), cos, sin)
        k = rotate(_heads(h @ w.k.T, c.kv_heads), cos, sin)
        v = _heads(h @ w.v.T, c.kv_heads)
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = q @ k.transpose(1, 2) / c.head**0.5 + mask
        mixed = torch.softmax(scores, dim=-1) @ v
        return mixed.transpose(0, 1).reshape(len(h), -1) @ w.o.T


class ReferenceHead(torch.nn.Module):
    """Final norm and one vocabulary slice: `[T, C]` to `[T, V / slices]`."""

    def __init__(self, config: LlamaConfig, weights: HeadWeights) -> None:
        super().__init__()
        self.config, self.weights = config, weights

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the slice for hidden states `[T, C]`."""
        return rms_norm(x, self.weights.norm, self.config.epsilon) @ self.weights.projection.T


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(len(x), heads, -1).transpose(0, 1)
