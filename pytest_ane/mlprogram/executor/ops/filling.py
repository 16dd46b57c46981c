"""Tensors filled with few numbers: constants, ranges, one-hot vectors, zeros outside a band."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.executor.registry import register


def _typed(value: Any) -> Any:
    """A scalar as an array of MIL's types: Python's floats as float32, its integers as int32."""
    if type(value) is float:
        return np.asarray(value, np.float32)
    return np.asarray(value, np.int32) if type(value) is int else np.asarray(value)


def dimensions(shape: Any) -> tuple[int, ...]:
    """A shape that comes as a tensor of integers, as a tuple.

    Raises:
        ValueError: a dimension is negative.
    """
    lengths = tuple(integers(shape))
    if any(n < 0 for n in lengths):
        raise ValueError(f"shape {list(lengths)} has negative dimensions")
    return lengths


@register("fill", moves=True)
def fill(shape: Any, value: Any = 0.0) -> Any:
    """A tensor of this shape and the value's type, filled with the value.

    Raises:
        ValueError: a dimension is negative.
    """
    return np.full(dimensions(shape), _typed(value))


@register("fill_like", opset="iOS16", moves=True)
def fill_like(ref_tensor: Any, value: Any = 0.0) -> Any:
    """A tensor of another's shape and the value's type, filled with the value."""
    return np.full(np.shape(ref_tensor), _typed(value))


@register("one_hot", moves=True)
def one_hot(
    indices: Any, one_hot_vector_size: int, axis: int = -1, on_value: Any = 1, off_value: Any = 0
) -> Any:
    """`on_value` where a new axis' position is the index, else `off_value`.

    An index below 0 or beyond the vectors gives `off_value` everywhere, as in `tf.one_hot`.

    Raises:
        ValueError: the size is negative, or the axis out of bounds.
    """
    size = int(one_hot_vector_size)
    if size < 0:
        raise ValueError(f"one_hot_vector_size {size} is negative")
    where = np.expand_dims(indices, axis)
    places = np.arange(size).reshape(
        [-1 if n == axis % where.ndim else 1 for n in range(where.ndim)]
    )
    return np.where(where == places, _typed(on_value), _typed(off_value))


@register("range_1d", moves=True)
def range_1d(start: Any, end: Any, step: Any) -> Any:
    """`start`, `start + step`, ... up to, and without, `end`.

    Floats count ceil((end - start) / step) values, by arithmetic of their own type.

    Raises:
        ValueError: the step is 0, or a number is NaN.
        OverflowError: the range has no end.
    """
    first, last, by = (_typed(v).reshape(()) for v in (start, end, step))
    dtype = np.result_type(first, last, by)
    if by == 0:
        raise ValueError("step is 0")
    if dtype.kind in "iu":
        return np.arange(int(first), int(last), int(by), dtype=dtype)
    count = max(0, int(np.ceil(((last - first) / by).astype(dtype))))
    return (first + np.arange(count, dtype=np.float64) * by).astype(dtype)


@register("band_part", moves=True)
def band_part(x: Any, lower: int = -1, upper: int = -1) -> Any:
    """Matrices with zeros (also for infinity and NaN) outside a band about the diagonal.

    Args:
        x: rank 2 or more; the last two axes are the matrices'.
        lower: diagonals to keep below the main one; all where negative.
        upper: the same above it.

    Raises:
        ValueError: the rank is below 2.
    """
    x = np.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"x of shape {x.shape} is not a matrix")
    below = np.subtract.outer(np.arange(x.shape[-2]), np.arange(x.shape[-1]))
    band = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return np.where(band, x, x.dtype.type(0))
