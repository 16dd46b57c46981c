"""The ANE form of a decoder's block: all projections are 1x1 convolutions.

Factors go into weights where that loses no product: a score's into queries or their norm, the
residual's into what leads back to the stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_ane.models.families._ane import Chosen, ScaledRMSNorm, pointwise, rotate
from pytest_ane.models.families._layout import MASKED
from pytest_ane.models.families.decoder._config import Activation, DecoderConfig, Mixture
from pytest_ane.models.families.decoder._weights import AttentionWeights, BlockWeights, Linear


class AneAttention(nn.Module):
    """A block's first half: `x [1, C, T, 1]`, `cos`/`sin [1, 1, d, T]`, `mask [1, 1, T, T]` to `y`.

    `y` is as `x`: the residual stream.
    """

    def __init__(self, config: DecoderConfig, index: int, weights: AttentionWeights) -> None:
        super().__init__()
        self.config, w = config, weights
        self.head, self.kv_heads = config.heads_of(index)
        self.turns = config.layers[index].rotary is not None
        # The score's scale goes into q, which keeps q k^T well inside fp16; so does the cap's.
        scale = config.scale / (config.score_cap or 1)
        self.attention_norm = ScaledRMSNorm(w.attention_norm, config.stream_epsilon)
        self.q_proj = projection(w.q if config.head_norms else w.q.scaled(scale))
        self.k_proj = projection(w.k)
        self.v_proj = None if w.v is None else projection(w.v)
        self.q_norm = self.norm(None if w.q_norm is None else w.q_norm * scale, axis=2)
        self.k_norm = self.norm(w.k_norm, axis=2)
        self.v_norm: nn.Module = nn.Identity()
        if config.value_norms:
            self.v_norm = ScaledRMSNorm(None, config.epsilon, axis=2)
        self.o_proj = projection(self.added(w.o))
        self.attention_post_norm = self.post_norm(w.attention_post_norm)

    def norm(self, weight: Tensor | None, axis: int = 1) -> nn.Module:
        if weight is None:
            return nn.Identity()
        return ScaledRMSNorm(weight, self.config.epsilon, axis)

    def post_norm(self, weight: Tensor | None) -> nn.Module:
        return self.norm(None if weight is None else weight * self.addition)

    def added(self, w: Linear) -> Linear:
        return w if self.config.post_norms or self.addition == 1 else w.scaled(self.addition)

    @property
    def addition(self) -> float:
        return self.config.residual_scale * self.config.stream_scale

    def forward(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """`inputs` are `cos` and `sin`, where heads turn, and `mask`, and `write` with states."""
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x), *inputs))
        return x

    def attention(self, h: Tensor, *inputs: Tensor) -> Tensor:
        """Heads grouped by the keys they share: q `[KV, G, d, T]` against k `[KV, 1, d, T]`."""
        c = self.config
        tables, (mask, *write) = (inputs[:2], inputs[2:]) if self.turns else ((), inputs)
        groups = c.heads // self.kv_heads
        q = self.q_norm(self.q_proj(h).reshape(self.kv_heads, groups, self.head, -1))
        k = v = self.k_proj(h).reshape(self.kv_heads, 1, self.head, -1)
        k = self.k_norm(k)
        if tables:
            q, k = rotate(q, *tables), rotate(k, *tables)
        if self.v_proj is not None:
            v = self.v_proj(h).reshape(self.kv_heads, 1, self.head, -1)
        v = self.v_norm(v)
        k, v = self.seen(k, v, *write)
        scores = q.transpose(2, 3) @ k
        if c.score_cap is not None:
            scores = torch.tanh(scores) * c.score_cap
        weights = torch.softmax(scores + mask, dim=-1)
        mixed = v @ weights.transpose(2, 3)
        projected: Tensor = self.o_proj(mixed.reshape(1, c.heads * self.head, -1, 1))
        return projected

    def seen(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that are looked at: those of the call."""
        return k, v


class StatefulAttention(AneAttention):
    """With keys and values kept in states `k_cache`, `v_cache [KV, 1, d, S]`.

    `mask` and `write` are `[1, 1, T, S]`. New columns are put in place by a product with the
    one-hot `write`, for scattering keeps a program off the ANE (rule R002).
    """

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, config: DecoderConfig, index: int, weights: Any) -> None:
        super().__init__(config, index, weights)
        shape = (self.kv_heads, 1, self.head, config.slots(index) or 0)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float16))

    def seen(self, k: Tensor, v: Tensor, *write: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions so far, `[KV, 1, d, S]` each; both states are updated."""
        (place,) = write
        kept = 1 - place.sum(dim=2, keepdim=True)
        keys = self.k_cache * kept + k @ place
        values = self.v_cache * kept + v @ place
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return keys, values


class AneBlock(AneAttention):
    def __init__(self, config: DecoderConfig, index: int, weights: BlockWeights) -> None:
        super().__init__(config, index, weights)
        w, mixture = weights, config.mixture_of(index)
        self.ffn_norm = ScaledRMSNorm(w.ffn_norm, config.stream_epsilon)
        self.router = None if mixture is None else Router(mixture, w.router)
        self.gate_proj, self.up_proj = projection(w.gate), projection(w.up)
        self.down_proj = projection(self.added(w.down))
        self.has_shared = w.shared is not None
        if w.shared is not None:
            self.shared_gate, self.shared_up = projection(w.shared.gate), projection(w.shared.up)
            self.shared_down = projection(self.added(w.shared.down))
            self.shared_router = projection(w.shared.router)
        self.ffn_post_norm = self.post_norm(w.ffn_post_norm)

    def forward(self, x: Tensor, *inputs: Tensor) -> Tensor:
        x = super().forward(x, *inputs)
        h = self.ffn_norm(x)
        gate = activated(self.gate_proj(h), self.config.activation)
        if self.router is not None:
            # 0 times a finite gate is 0, and the convolution that leads down sums the experts.
            gate = weighted(gate, self.router(h))
        fed: Tensor = self.down_proj(gate * self.up_proj(h))
        if self.has_shared:
            fed = fed + self.shared(h)
        given: Tensor = x + self.ffn_post_norm(fed)
        return given

    def shared(self, h: Tensor) -> Tensor:
        inner = activated(self.shared_gate(h), self.config.activation) * self.shared_up(h)
        given: Tensor = self.shared_down(inner) * torch.sigmoid(self.shared_router(h))
        return given


class StatefulBlock(StatefulAttention, AneBlock):
    """The block with states."""


class Router(nn.Module):
    """What each expert counts for, `[1, experts, T, 1]`: exactly 0 if it is not chosen."""

    masked: Tensor
    zero: Tensor

    def __init__(self, mixture: Mixture, weight: Tensor | None) -> None:
        super().__init__()
        assert weight is not None
        self.router = pointwise(weight)
        self.chosen = Chosen(mixture.experts, mixture.top, weight.dtype)
        self.normalized = mixture.normalized
        for name, value in (("masked", MASKED), ("zero", 0.0)):
            self.register_buffer(name, torch.tensor([value], dtype=weight.dtype))

    def forward(self, h: Tensor) -> Tensor:
        logits = self.router(h)
        chosen = self.chosen(logits)
        if self.normalized:
            return torch.softmax(torch.where(chosen, logits, self.masked), dim=1)
        return torch.where(chosen, torch.softmax(logits, dim=1), self.zero)


def weighted(inner: Tensor, shares: Tensor) -> Tensor:
    """Inner channels `[1, experts * F, T, 1]` times each expert's share `[1, experts, T, 1]`."""
    experts = shares.shape[1]
    apart = inner.reshape(1, experts, inner.shape[1] // experts, -1)
    return (apart * shares.reshape(1, experts, 1, -1)).reshape(1, inner.shape[1], -1, 1)


def projection(w: Linear) -> nn.Conv2d:
    return pointwise(w.weight, w.bias)


def activated(x: Tensor, activation: Activation) -> Tensor:
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")
