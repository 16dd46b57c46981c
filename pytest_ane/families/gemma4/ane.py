"""The ANE form of Gemma 4's norms, attention and head: `[1, C, T, 1]` tensors, 1x1 convolutions.

Norms come in the dtype of their weights. The converter computes inputs and divisions in float32 and
promotes what meets them, large weights included, before it makes all of it fp16 again: most of a
conversion's time and half of its memory.
A cast to fp16 after the norm, and constants in fp16 instead of Python numbers, keep it from that;
they leave no op in the program.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.core import fp16
from pytest_ane.families.ane import pointwise, rotate, settled
from pytest_ane.families.gemma4.config import Gemma4Config
from pytest_ane.families.gemma4.weights import AttentionWeights, HeadWeights


class AneUnit(nn.Module):
    """RMSNorm without a weight, which no fp16 input can overflow.

    The formula is that of `families.ane.ScaledRMSNorm`: with m = max|x|, x / sqrt(mean(x^2) + eps)
    = (x/m) / sqrt(mean((x/m)^2) + (sqrt(eps)/m)^2).
    """

    tiny: Tensor
    root_epsilon: Tensor

    def __init__(self, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("tiny", torch.tensor([fp16.MIN_NORMAL], dtype=dtype))
        self.register_buffer("root_epsilon", torch.tensor([epsilon**0.5], dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """`x [N, C, T, 1]` over the root of its mean square along C."""
        largest = torch.maximum(x.abs().amax(dim=1, keepdim=True), self.tiny)
        scaled = x / largest
        square = (scaled * scaled).mean(dim=1, keepdim=True)
        epsilon = self.root_epsilon / largest
        return settled(scaled * torch.rsqrt(square + epsilon * epsilon), self.tiny.dtype)


class AneNorm(nn.Module):
    """RMSNorm of `[N, C, T, 1]` over C with a weight `[C]`."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.unit = AneUnit(epsilon, weight.dtype)
        self.weight = constant(weight)

    def forward(self, x: Tensor) -> Tensor:
        """RMSNorm of `[N, C, T, 1]` over C, times the weight."""
        normed: Tensor = self.unit(x) * self.weight
        return normed


def constant(values: Tensor) -> nn.Parameter:
    """Values of channels `[C]` as `[1, C, 1, 1]`."""
    return nn.Parameter(values.reshape(1, -1, 1, 1), requires_grad=False)


class AneAttention(nn.Module):
    """Attention with states `k_cache`, `v_cache [KV, 1, d, S]`.

    Sliding and global layers differ in sizes, tables and masks only. New columns are put in place
    by a product with the one-hot `write`, for scattering keeps a program off the ANE (rule R002).
    """

    k_cache: Tensor
    v_cache: Tensor
    one: Tensor

    def __init__(self, config: Gemma4Config, layer: int, w: AttentionWeights, context: int) -> None:
        super().__init__()
        self.head, self.kv_heads = config.attention(layer)
        self.heads = config.heads
        self.unit = AneUnit(config.epsilon, w.q.dtype)
        self.input_norm = AneNorm(w.input_norm, config.epsilon)
        self.q_proj, self.k_proj, self.o_proj = pointwise(w.q), pointwise(w.k), pointwise(w.o)
        self.v_proj = None if w.v is None else pointwise(w.v)
        self.q_norm = AneNorm(w.q_norm, config.epsilon)
        self.k_norm = AneNorm(w.k_norm, config.epsilon)
        self.post_norm = AneNorm(w.post_norm, config.epsilon)
        for name in ("k_cache", "v_cache"):
            empty = torch.zeros((self.kv_heads, 1, self.head, context), dtype=w.q.dtype)
            self.register_buffer(name, empty)
        self.register_buffer("one", torch.ones(1, dtype=w.q.dtype))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor) -> Tensor:
        """`x [1, C, T, 1]`, tables `[1, 1, d, T]`, masks `[1, 1, T, S]`; returns `x`'s shape."""
        h = self.input_norm(x)
        q = self.q_norm(self.q_proj(h).reshape(self.heads, self.head, -1, 1))
        key = self.k_proj(h).reshape(self.kv_heads, self.head, -1, 1)
        value = key if self.v_proj is None else self.v_proj(h).reshape(key.shape)
        groups = self.heads // self.kv_heads
        q = rotate(q.reshape(self.kv_heads, groups, self.head, -1), cos, sin)
        k = rotate(self.k_norm(key).reshape(self.kv_heads, 1, self.head, -1), cos, sin)
        v = self.unit(value).reshape(self.kv_heads, 1, self.head, -1)
        keys, values = self.remembered(k, v, write)
        weights = torch.softmax(q.transpose(2, 3) @ keys + mask, dim=-1)
        mixed = (values @ weights.transpose(2, 3)).reshape(1, self.heads * self.head, -1, 1)
        given: Tensor = self.post_norm(self.o_proj(settled(mixed, self.one.dtype)))
        return x + given

    def remembered(self, k: Tensor, v: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
        """Put new columns into both states; `[KV, 1, d, S]` each."""
        kept = self.one - write.sum(dim=2, keepdim=True)
        keys = self.k_cache * kept + k @ write
        values = self.v_cache * kept + v @ write
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return keys, values


class AneHead(nn.Module):
    """Final norm, one vocabulary slice, soft cap: `x [1, C, T, 1]` to `y [1, V / slices, T, 1]`."""

    cap: Tensor

    def __init__(self, config: Gemma4Config, w: HeadWeights) -> None:
        super().__init__()
        self.norm = AneNorm(w.norm, config.epsilon)
        self.head = pointwise(w.projection)
        self.register_buffer("cap", torch.tensor([config.cap], dtype=w.norm.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Softly capped logits `[1, V / slices, T, 1]` of hidden states `[1, C, T, 1]`."""
        return torch.tanh(self.head(self.norm(x)) / self.cap) * self.cap
