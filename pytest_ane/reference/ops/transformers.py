"""Attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.reference.ops.activation import softmax
from pytest_ane.reference.registry import register


@register("scaled_dot_product_attention", opset="iOS18")
def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    """softmax(Q K^T / sqrt(E) + mask) V, of `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`.

    The mask `[.., S]` broadcasts to `[*B, L, S]`; floats are added, and where a bool is false a
    position is left out. A row without any position gives NaN, as the formula has it.
    """
    _check(query, key, value, attn_mask)
    scores = np.matmul(query, np.swapaxes(key, -1, -2))
    scores *= 1 / math.sqrt(query.shape[-1])
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = np.where(attn_mask, scores, -np.inf).astype(scores.dtype, copy=False)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return np.matmul(softmax(scores), value)


def _check(query: Any, key: Any, value: Any, mask: Any) -> None:
    """Operands that do not belong together, which numpy might broadcast."""
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if query.ndim < 3 or not query.ndim == key.ndim == value.ndim:
        raise ValueError(f"{shapes}: of one rank, at least 3, expected")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(f"{shapes}: the batch differs")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{shapes}: the embedding or the sequence length differs")
    if mask is None:
        return
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.shape[-1:] != scores[-1:] or np.broadcast_shapes(mask.shape, scores) != scores:
        raise ValueError(f"a mask {mask.shape} does not broadcast to the scores {scores}")
