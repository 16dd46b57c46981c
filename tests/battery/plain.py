"""The parts that faults edit, written out as people port them; they compute what the product does.

The decoder core has one block for many families. Here are its Llama and its Gemma 4 alone, so that
an edit of their text is one of what a user would have written; `test_faults` holds them against it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.models.families._ane import ScaledRMSNorm, cast_to, rotate, scaled_to_unit
from pytest_ane.models.families.decoder._forms import StatefulAttention, StatefulBlock

__all__ = ["PlainBlock", "PlainGemma", "PlainNorm", "written_out"]


class PlainNorm(ScaledRMSNorm):
    """RMSNorm over the channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `[1, C, T, 1]` over C."""
        return cast_to(scaled_to_unit(x, self.root_epsilon) * self.weight, x.dtype)


class PlainBlock(StatefulBlock):
    """A Llama block with states."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor) -> Tensor:
        """Attention and feed-forward, each added to the residual stream."""
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, write)
        h = self.ffn_norm(x)
        fed: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))
        return x + fed

    def attention(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor) -> Tensor:
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

    def seen(self, k: Tensor, v: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions so far, `[KV, 1, d, S]` each; both states are updated."""
        kept = 1 - write.sum(dim=2, keepdim=True)
        keys = self.k_cache * kept + k @ write
        values = self.v_cache * kept + v @ write
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return keys, values


class PlainGemma(StatefulAttention):
    """Attention of Gemma 4."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor) -> Tensor:
        """Attention, added to the residual stream."""
        h, groups = self.attention_norm(x), self.config.heads // self.kv_heads
        q = self.q_norm(self.q_proj(h).reshape(self.kv_heads, groups, self.head, -1))
        key = self.k_proj(h).reshape(self.kv_heads, 1, self.head, -1)
        value = key if self.v_proj is None else self.v_proj(h).reshape(key.shape)
        q = rotate(q, cos, sin)
        k = rotate(self.k_norm(key), cos, sin)
        v = self.v_norm(value)
        keys, values = self.seen(k, v, write)
        weights = torch.softmax(q.transpose(2, 3) @ keys + mask, dim=-1)
        mixed = (values @ weights.transpose(2, 3)).reshape(1, self.config.heads * self.head, -1, 1)
        given: Tensor = self.attention_post_norm(self.o_proj(mixed))
        return x + given

    seen = PlainBlock.seen


def written_out(part: nn.Module) -> None:
    """Let a part of the core be the one here, if there is one."""
    written = (
        (StatefulBlock, PlainBlock),
        (StatefulAttention, PlainGemma),
        (ScaledRMSNorm, PlainNorm),
    )
    for own, plain in written:
        if type(part) is own:
            part.__class__ = plain
