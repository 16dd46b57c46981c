"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register
from pytest_ane.reference.weights import StreamedWeight


@register("matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    """`x y` over the last two axes, the others broadcast; either may be transposed first."""
    x = np.swapaxes(x, -1, -2) if transpose_x and x.ndim > 1 else x
    y = np.swapaxes(y, -1, -2) if transpose_y and y.ndim > 1 else y
    return np.matmul(x, y)


@register("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x weight^T + bias`, `weight [out, in]`."""
    if isinstance(weight, StreamedWeight):
        columns = np.swapaxes(x.reshape(1, -1, x.shape[-1]), 1, 2)
        y = weight.product(columns)[0].T.reshape(*x.shape[:-1], weight.shape[0])
    else:
        y = np.matmul(x, weight.T)
    return y if bias is None else y + bias


@register("einsum")
def einsum(values: Any, equation: str) -> Any:
    """Sum of products as the equation says."""
    return np.einsum(equation, *values, optimize=True)
