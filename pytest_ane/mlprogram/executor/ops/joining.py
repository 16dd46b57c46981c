"""Operations that join, cut, repeat, pad and reverse tensors."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.executor.registry import register


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


@register("stack", moves=True)
def stack(values: Any, axis: int) -> Any:
    """Tensors of one shape, one after another along a new axis."""
    return np.stack(values, axis=axis)


@register("split", moves=True)
def split(x: Any, axis: int, num_splits: Any = None, split_sizes: Any = None) -> Any:
    """Parts along an axis: of given sizes, or this many equal ones.

    Raises:
        ValueError: the sizes do not add up, or are not `num_splits`; no equal parts are possible.
    """
    if split_sizes is None:
        return tuple(np.split(x, int(num_splits), axis=axis))
    sizes = integers(split_sizes)
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ValueError(f"split_sizes {sizes} do not add up to {x.shape[axis]}")
    if num_splits is not None and len(sizes) != num_splits:
        raise ValueError(f"split_sizes {sizes} are not num_splits, {num_splits}")
    before = (slice(None),) * range(x.ndim)[axis]
    starts = accumulate(sizes, initial=0)
    parts = [(*before, slice(n, n + size)) for n, size in zip(starts, sizes, strict=False)]
    return tuple([x[part] for part in parts])


@register("tile", moves=True)
def tile(x: Any, reps: Any) -> Any:
    """`x` repeated along each axis.

    Raises:
        ValueError: there is not one positive number for each axis.
    """
    counts = integers(reps)
    if len(counts) != np.ndim(x) or min(counts) < 1:
        raise ValueError(f"reps {counts} are not one positive number for each axis of x")
    return np.tile(x, counts)


@register("pad", moves=True)
def pad(x: Any, pad: Any, mode: str = "constant", constant_val: Any = 0) -> Any:
    """Elements before and after axes, given as pairs for the last `len(pad) / 2` of them.

    Raises:
        ValueError: unpaired, negative or too many numbers, an unknown mode, or more elements than
            the axis has to reflect (its length less one) or to replicate (its length).
    """
    x = np.asarray(x)
    pairs = _pad_pairs(np.asarray(pad), x.ndim)
    if x.ndim == 0:
        return x
    if mode == "constant":
        return np.pad(x, pairs, constant_values=np.asarray(constant_val).astype(x.dtype))
    if mode == "reflect":
        _check_pad(pairs, x.shape, mode, 1)
        return np.pad(x, pairs, "reflect")
    if mode == "replicate":
        _check_pad(pairs, x.shape, mode, 0)
        return np.pad(x, pairs, "edge")
    raise ValueError(f"unknown mode {mode!r}; there are: constant, reflect, replicate")


def _pad_pairs(pad: Any, rank: int) -> list[tuple[int, int]]:
    """A pair for every axis, of zeros for those before the padded ones."""
    if pad.ndim != 1 or len(pad) % 2 or len(pad) > 2 * rank:
        raise ValueError(f"pad {pad.tolist()} is not a list of pairs for at most {rank} axes")
    if (pad < 0).any():
        raise ValueError(f"pad {pad.tolist()} has a negative number")
    last = [(int(before), int(after)) for before, after in pad.reshape(-1, 2)]
    return [(0, 0)] * (rank - len(last)) + last


def _check_pad(pairs: list[tuple[int, int]], shape: tuple[int, ...], mode: str, less: int) -> None:
    for axis, (amounts, size) in enumerate(zip(pairs, shape, strict=True)):
        if max(amounts) > max(size - less, 0):
            raise ValueError(f"mode {mode} cannot add {amounts} to axis {axis} of {size} elements")


@register("reverse", moves=True)
def reverse(x: Any, axes: Any = None) -> Any:
    """`x` backwards along axes; all of them where none are given."""
    return np.flip(x, None if axes is None else tuple(integers(axes)))


@register("reverse_sequence", moves=True)
def reverse_sequence(x: Any, lengths: Any, seq_axis: int = 0, batch_axis: int = 0) -> Any:
    """The first `lengths[b]` steps along `seq_axis` backwards, for each b along `batch_axis`.

    Raises:
        IndexError: an axis is out of bounds.
        ValueError: both axes are the same, or the lengths do not fit them.
    """
    sequence, batch = range(x.ndim)[seq_axis], range(x.ndim)[batch_axis]
    lengths, steps = np.atleast_1d(lengths), x.shape[sequence]
    if sequence == batch:
        raise ValueError(f"seq_axis and batch_axis are both {batch}")
    if lengths.shape != (x.shape[batch],) or np.any((lengths < 0) | (lengths > steps)):
        raise ValueError(
            f"lengths {lengths.tolist()} are not {x.shape[batch]} numbers from 0 to {steps}"
        )
    step = np.arange(steps).reshape([-1 if i == sequence else 1 for i in range(x.ndim)])
    length = lengths.reshape([-1 if i == batch else 1 for i in range(x.ndim)])
    return np.take_along_axis(x, np.where(step < length, length - 1 - step, step), axis=sequence)
