"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register, specialize
from pytest_ane.reference.weights import StreamedWeight


@register("matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    """`x y` over the last two axes, the others broadcast; either may be transposed first.

    A vector is a row on the left and a column on the right; its axis is then removed again.
    """
    x = np.swapaxes(x, -1, -2) if transpose_x and x.ndim > 1 else x
    y = np.swapaxes(y, -1, -2) if transpose_y and y.ndim > 1 else y
    return _product(x, y)


def _product(x: Any, y: Any) -> Any:
    """`x y`. BLAS takes five times as long for a column by a row, where there is nothing to sum."""
    if x.ndim > 1 and y.ndim > 1 and x.shape[-1] == 1 == y.shape[-2]:
        return np.multiply(x, y)
    return np.matmul(x, y)


@specialize("matmul", varying=("x", "y"))
def _matmul(transpose_x: bool = False, transpose_y: bool = False) -> Any:
    if not transpose_x and not transpose_y:
        return _product
    return lambda x, y: matmul(x, y, transpose_x, transpose_y)


@register("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x weight^T + bias`, `x [.., in]`, `weight [out, in]`, `bias [out]`."""
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
