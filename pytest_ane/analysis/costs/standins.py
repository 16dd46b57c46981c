"""What stands in for costly operations where only shapes are asked: results of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.reference.ops.conv import conv as convolve
from pytest_ane.reference.ops.linear import matmul as multiply

Array = npt.NDArray[Any]


def zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Zeros that take the memory of one; read-only."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _conv(x: Any, weight: Any, bias: Any = None, groups: int = 1, **spatial: Any) -> Array:
    """The extents are those of one channel's convolution with one kernel."""
    one = convolve(zeros((1, 1, *x.shape[2:])), zeros((1, 1, *weight.shape[2:])), **spatial)
    return zeros((len(x), weight.shape[0], *one.shape[2:]))


def _linear(x: Any, weight: Any, bias: Any = None) -> Array:
    return zeros((*x.shape[:-1], weight.shape[0]))


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    """The extents are those of a product that sums over one element only."""
    x = x[..., :1, :] if transpose_x and x.ndim > 1 else x[..., :1]
    y = y[..., :1] if transpose_y and y.ndim > 1 else y[..., :1, :] if y.ndim > 1 else y[:1]
    return zeros(np.shape(multiply(x, y, transpose_x, transpose_y)))


STAND_INS: Mapping[str, Callable[..., Array]] = {
    "conv": _conv,
    "linear": _linear,
    "matmul": _matmul,
}
"""By operation; they take what the operation takes."""
