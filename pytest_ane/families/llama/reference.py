"""The float32 reference: a Llama block and head as the published formulas read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.families.layout import causal_mask
from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.families.llama.weights import BlockWeights, HeadWeights
from pytest_ane.families.reference import attend, rms_norm, rotate, split_heads


def block(x: Tensor, w: BlockWeights, c: LlamaConfig) -> Tensor:
    """One block on hidden states `[T, C]` from position 0."""
    x = x + attention(rms_norm(x, c.epsilon) * w.attention_norm, w, c)
    h = rms_norm(x, c.epsilon) * w.ffn_norm
    return x + (F.silu(h @ w.gate.T) * (h @ w.up.T)) @ w.down.T


def attention(h: Tensor, w: BlockWeights, c: LlamaConfig) -> Tensor:
    """Causal attention with grouped queries on normed states `[T, C]`."""
    tables = [torch.from_numpy(table) for table in c.rotary.tables(len(h))]
    q = rotate(split_heads(h @ w.q.T, c.head), *tables)
    k = rotate(split_heads(h @ w.k.T, c.head), *tables)
    v = split_heads(h @ w.v.T, c.head)
    mask = torch.from_numpy(causal_mask(len(h)))
    return attend(q, k, v, mask, c.head**0.5) @ w.o.T


def logits(x: Tensor, w: HeadWeights, c: LlamaConfig) -> Tensor:
    """Logits `[T, V / slices]` of a vocabulary slice for hidden states `[T, C]`."""
    return (rms_norm(x, c.epsilon) * w.norm) @ w.projection.T
