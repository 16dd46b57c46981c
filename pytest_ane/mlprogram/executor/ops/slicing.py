"""Slices, slices replaced, and sliding windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import integers, ints
from pytest_ane.mlprogram.executor.registry import register


def _index(
    rank: int,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> tuple[Any, ...]:
    """begin:end:stride of each axis; a mask opens an end, or takes one index and drops the axis.

    Raises:
        ValueError: a parameter does not have one value for each axis, or a stride is 0.
    """
    index: list[Any] = []
    for first, last, step, open_first, open_last, squeeze in zip(
        ints(begin, rank, 0), ints(end, rank, 0), ints(stride, rank, 1),
        ints(begin_mask, rank, 0), ints(end_mask, rank, 0), ints(squeeze_mask, rank, 0),
        strict=True,
    ):  # fmt: skip
        if squeeze:
            index.append(0 if open_first else first)
        else:
            index.append(slice(None if open_first else first, None if open_last else last, step))
    return tuple(index)


@register("slice_by_index", moves=True)
def slice_by_index(x: Any, begin: Any, end: Any, **bounds: Any) -> Any:
    """x[begin:end:stride] by axis, with Python's meaning of negative and excessive bounds.

    Args:
        x: any shape.
        begin: one integer for each axis, as are `end` and `stride` (1 if left out).
        end: not included.
        bounds: `stride`; `begin_mask` and `end_mask` open a bound; `squeeze_mask` takes the one
            index `begin` and drops the axis.

    Raises:
        IndexError: a squeezed index is out of bounds.
        ValueError: there is not one value for each axis, or a stride is 0.
    """
    return np.asarray(x)[_index(np.ndim(x), begin, end, **bounds)]


@register("slice_update", opset="iOS18", moves=True)
def slice_update(x: Any, update: Any, begin: Any, end: Any, **bounds: Any) -> Any:
    """A copy of x with `slice_by_index` of it replaced.

    Raises:
        IndexError: a squeezed index is out of bounds.
        ValueError: as `slice_by_index`, or the update has not the slice's shape or has rank 0.
    """
    x, update = np.asarray(x), np.asarray(update)
    index = _index(x.ndim, begin, end, **bounds)
    part = x[index]
    if update.shape != part.shape or update.ndim == 0:
        raise ValueError(f"update has shape {update.shape}; the slice has {part.shape}, not rank 0")
    if part.shape == x.shape and all(along.step > 0 for along in index):
        return update.astype(x.dtype, copy=False)  # All of x is replaced.
    result = np.array(x)
    result[index] = update
    return result


@register("slice_by_size", moves=True)
def slice_by_size(x: Any, begin: Any, size: Any) -> Any:
    """x[begin : begin + size] by axis; size -1 takes all that is left.

    Raises:
        IndexError: a slice reaches beyond x.
        ValueError: there is not one begin and size for each axis.
    """
    index = []
    for n, first, count in zip(np.shape(x), integers(begin), integers(size), strict=True):
        start = first + n if first < 0 else first
        stop = n if count == -1 else start + count
        if not 0 <= start <= stop <= n:
            raise IndexError(f"begin {first} and size {count} reach beyond an axis of size {n}")
        index.append(slice(start, stop))
    return np.asarray(x)[tuple(index)]


@register("sliding_windows", moves=True)
def sliding_windows(x: Any, axis: int, size: int, stride: int = 1) -> Any:
    """All windows of `size` along an axis, `stride` apart.

    Returns:
        The axis counts windows, (n - size) // stride + 1 of them; a new axis after it counts within
        a window.

    Raises:
        ValueError: the windows are longer than the axis, or size or stride is not positive.
    """
    if size < 1 or stride < 1:
        raise ValueError(f"size {size} and stride {stride} must be positive")
    axis = range(x.ndim)[axis]
    windows = np.lib.stride_tricks.sliding_window_view(x, int(size), axis=axis)
    starts = (slice(None),) * axis + (slice(None, None, int(stride)),)
    return np.moveaxis(windows[starts], -1, axis + 1)
