"""Operations that cut, replace, join, repeat, pad and reverse tensors."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register, register_all
from pytest_ane.mlprogram.executor.ops.spatial import integers, ints


def _index(
    rank: int, begin: Any, end: Any, stride: Any = None, begin_mask: Any = None,
    end_mask: Any = None, squeeze_mask: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """begin:end:stride of each axis; a mask opens an end, or takes one index and drops the axis."""
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

    `bounds`: `stride`, 1 if left out; `begin_mask` and `end_mask` open a bound; `squeeze_mask`
    takes the one index `begin` and drops the axis.
    """
    return np.asarray(x)[_index(np.ndim(x), begin, end, **bounds)]


@register("slice_update", opset="iOS18", moves=True)
def slice_update(x: Any, update: Any, begin: Any, end: Any, **bounds: Any) -> Any:
    """A copy of x with `slice_by_index` of it replaced."""
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
    """x[begin : begin + size] by axis; size -1 takes all that is left."""
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
    """All (n - size) // stride + 1 windows of `size` along an axis, a new axis after it."""
    if size < 1 or stride < 1:
        raise ValueError(f"size {size} and stride {stride} must be positive")
    axis = range(x.ndim)[axis]
    windows = np.lib.stride_tricks.sliding_window_view(x, int(size), axis=axis)
    starts = (slice(None),) * axis + (slice(None, None, int(stride)),)
    return np.moveaxis(windows[starts], -1, axis + 1)


@register("concat", moves=True)
def concat(values: Any, axis: int, interleave: bool = False) -> Any:
    """Tensors joined along an axis, interleaved slice by slice if so; scalars make a vector."""
    values = [v if getattr(v, "ndim", 0) else np.atleast_1d(v) for v in values]
    if not interleave:
        return np.concatenate(values, axis=axis)
    stacked = np.stack(values, axis=axis % values[0].ndim + 1)
    target = list(values[0].shape)
    target[axis] *= len(values)
    return stacked.reshape(target)


_MOVES: dict[str, Any] = {
    "stack": lambda values, axis: np.stack(values, axis=axis),
    # All axes where none are given.
    "reverse": lambda x, axes=None: np.flip(x, None if axes is None else tuple(integers(axes))),
}
register_all(_MOVES, _MOVES)


@register("split", moves=True)
def split(x: Any, axis: int, num_splits: Any = None, split_sizes: Any = None) -> Any:
    """Parts along an axis: of given sizes, or this many equal ones."""
    if split_sizes is None:
        return tuple(np.split(x, int(num_splits), axis=axis))
    sizes = integers(split_sizes)
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ValueError(f"split_sizes {sizes} do not add up to {x.shape[axis]}")
    before = (slice(None),) * range(x.ndim)[axis]
    starts = accumulate(sizes, initial=0)
    parts = [(*before, slice(n, n + size)) for n, size in zip(starts, sizes, strict=False)]
    return tuple([x[part] for part in parts])


@register("tile", moves=True)
def tile(x: Any, reps: Any) -> Any:
    """`x` repeated along each axis."""
    counts = integers(reps)
    if len(counts) != np.ndim(x) or min(counts) < 1:
        raise ValueError(f"reps {counts} are not one positive number for each axis of x")
    return np.tile(x, counts)


_PADS: dict[str, Any] = {"reflect": ("reflect", 1), "replicate": ("edge", 0)}
"""Numpy's modes, and by how much less than its own elements an axis may grow at either end."""


@register("pad", moves=True)
def pad(x: Any, pad: Any, mode: str = "constant", constant_val: Any = 0) -> Any:
    """Elements before and after axes, given as pairs for the last `len(pad) / 2` of them."""
    x = np.asarray(x)
    last = [(int(before), int(after)) for before, after in np.reshape(pad, (-1, 2))]
    pairs = [(0, 0)] * (x.ndim - len(last)) + last
    if x.ndim == 0:
        return x
    if mode == "constant":
        return np.pad(x, pairs, constant_values=np.asarray(constant_val).astype(x.dtype))
    if mode not in _PADS:
        raise ValueError(f"unknown mode {mode!r}; there are: constant, reflect, replicate")
    name, less = _PADS[mode]
    for axis, (amounts, size) in enumerate(zip(pairs, x.shape, strict=True)):
        if max(amounts) > max(size - less, 0):
            raise ValueError(f"mode {mode} cannot add {amounts} to axis {axis} of {size} elements")
    return np.pad(x, pairs, name)


@register("reverse_sequence", moves=True)
def reverse_sequence(x: Any, lengths: Any, seq_axis: int = 0, batch_axis: int = 0) -> Any:
    """The first `lengths[b]` steps along `seq_axis` backwards, for each b along `batch_axis`."""
    sequence, batch = range(x.ndim)[seq_axis], range(x.ndim)[batch_axis]
    lengths, steps = np.atleast_1d(lengths), x.shape[sequence]
    if sequence == batch:
        raise ValueError(f"seq_axis and batch_axis are both {batch}")
    count = x.shape[batch]
    if lengths.shape != (count,) or np.any((lengths < 0) | (lengths > steps)):
        raise ValueError(f"lengths {lengths.tolist()} are not {count} numbers from 0 to {steps}")
    step = np.arange(steps).reshape([-1 if i == sequence else 1 for i in range(x.ndim)])
    length = lengths.reshape([-1 if i == batch else 1 for i in range(x.ndim)])
    return np.take_along_axis(x, np.where(step < length, length - 1 - step, step), axis=sequence)
