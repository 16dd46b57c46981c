"""The float32 reference: BERT's block (Devlin et al., arXiv 1810.04805) and pooling.

A text is computed without padding, which no position may see.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.models.families._reference import attend, split_heads
from pytest_ane.models.families.bert._weights import BlockWeights, Norm
from pytest_ane.models.families.bert.config import BertConfig
from pytest_ane.models.families.decoder._reference import linear


def block(x: Tensor, w: BlockWeights, c: BertConfig) -> Tensor:
    """One block on hidden states `[T, C]`: each half is added, then normed."""
    x = normed(x + attention(x, w, c), w.attention_norm, c)
    return normed(x + linear(activated(linear(x, w.up), c), w.down), w.ffn_norm, c)


def residual(x: Tensor, w: BlockWeights, c: BertConfig) -> Tensor:
    """What the block gives of `[T, C]` if neither half adds anything."""
    return normed(normed(x, w.attention_norm, c), w.ffn_norm, c)


def normed(x: Tensor, norm: Norm, c: BertConfig) -> Tensor:
    """LayerNorm over the last axis (Ba et al., arXiv 1607.06450)."""
    return F.layer_norm(x, (x.shape[-1],), *norm, c.epsilon)


def attention(x: Tensor, w: BlockWeights, c: BertConfig) -> Tensor:
    """Attention of every position to all of `[T, C]`."""
    q, k, v = (split_heads(linear(x, each), c.head) for each in (w.q, w.k, w.v))
    return linear(attend(q, k, v, torch.zeros(()), c.head**0.5), w.o)


def activated(x: Tensor, c: BertConfig) -> Tensor:
    """GELU, by the error function or by its tanh approximation, or ReLU."""
    if c.activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="none" if c.activation == "erf" else "tanh")


def pooled(x: Tensor, c: BertConfig) -> Tensor:
    """The embedding `[1, C]` of a text's last hidden states `[T, C]`."""
    y = x.mean(dim=0, keepdim=True) if c.pooling == "mean" else x[:1]
    return F.normalize(y) if c.normalized else y
