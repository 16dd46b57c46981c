"""Matrix products, and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.activation import softmax
from pytest_ane.mlprogram.executor.registry import register
from pytest_ane.mlprogram.executor.weights import StreamedWeight


@register("matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    """`x y` over the last two axes, the others broadcast; either may be transposed first.

    A vector is a row on the left and a column on the right; its axis is then removed again.
    """
    x = np.swapaxes(x, -1, -2) if transpose_x and x.ndim > 1 else x
    y = np.swapaxes(y, -1, -2) if transpose_y and y.ndim > 1 else y
    if x.ndim > 1 and y.ndim > 1 and x.shape[-1] == 1 == y.shape[-2]:
        # A column by a row: nothing is summed, and BLAS takes five times as long.
        return np.multiply(x, y)
    return np.matmul(x, y)


@register("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x weight^T + bias`, `x [.., in]`, `weight [out, in]`, `bias [out]`.

    Raises:
        ValueError: the weight is no matrix, or the bias not of its rows.
    """
    if weight.ndim != 2 or (bias is not None and np.shape(bias) != weight.shape[:1]):
        raise ValueError(f"a weight {weight.shape} and a bias {np.shape(bias)}")
    if isinstance(weight, StreamedWeight):
        columns = np.swapaxes(x.reshape(1, -1, x.shape[-1]), 1, 2)
        y = weight.product(columns)[0].T.reshape(*x.shape[:-1], weight.shape[0])
    else:
        y = np.matmul(x, weight.T)
    return y if bias is None else y + bias


@register("einsum")
def einsum(values: Any, equation: str) -> Any:
    """Sum of products as the equation says.

    MIL's own equations are `nchw,nwhu->nchu` and `chw,whr->chr`, under any letters: matrix products
    for every n and h, which broadcast.
    """
    letters = {c: str(i) for i, c in enumerate(dict.fromkeys(c for c in equation if c.isalpha()))}
    pattern = "".join(letters.get(c, c) for c in equation if not c.isspace())
    if pattern not in ("0123,0324->0124", "012,213->013"):
        return np.einsum(equation, *values, optimize=True)
    x, y = values
    if not x.ndim == y.ndim == len(pattern.split(",")[0]):
        raise ValueError(f"operands of rank {x.ndim} and {y.ndim} for {equation!r}")
    product = np.matmul(np.swapaxes(x, -3, -2), np.swapaxes(y, -3, -2))
    return np.swapaxes(product, -3, -2)


@register("scaled_dot_product_attention", opset="iOS18")
def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    """softmax(Q K^T / sqrt(E) + mask) V, of `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`.

    The mask `[.., S]` broadcasts to `[*B, L, S]`; floats are added, and where a bool is false a
    position is left out. A row without any position gives NaN, as the formula has it.
    """
    _check_attention(query, key, value, attn_mask)
    scores = np.matmul(query, np.swapaxes(key, -1, -2))
    scores *= 1 / math.sqrt(query.shape[-1])
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = np.where(attn_mask, scores, -np.inf).astype(scores.dtype, copy=False)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return np.matmul(softmax(scores), value)


def _check_attention(query: Any, key: Any, value: Any, mask: Any) -> None:
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
