"""Operations that join, cut, repeat and reverse tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register, specialize


@register("concat", moves=True)
def concat(values: Any, axis: int, interleave: bool = False) -> Any:
    """Tensors one after another along an axis, or their slices by turns; scalars make a vector."""
    values = [v if getattr(v, "ndim", 0) else np.atleast_1d(v) for v in values]
    if not interleave:
        return np.concatenate(values, axis=axis)
    stacked = np.stack(values, axis=axis % values[0].ndim + 1)
    target = list(values[0].shape)
    target[axis] *= len(values)
    return stacked.reshape(target)


@register("stack", moves=True)
def stack(values: Any, axis: int) -> Any:
    """Tensors along a new axis."""
    return np.stack(values, axis=axis)


@register("split", moves=True)
def split(x: Any, axis: int, num_splits: Any = None, split_sizes: Any = None) -> Any:
    """Parts along an axis: of given sizes, or this many equal ones.

    Raises:
        ValueError: the sizes do not add up, or are not `num_splits`; no equal parts are possible.
    """
    if split_sizes is None:
        return tuple(np.split(x, int(num_splits), axis=axis))
    sizes = [int(s) for s in np.atleast_1d(split_sizes)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ValueError(f"split_sizes {sizes} do not add up to {x.shape[axis]}")
    if num_splits is not None and len(sizes) != num_splits:
        raise ValueError(f"split_sizes {sizes} are not num_splits, {num_splits}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


@specialize("split")
def _split(axis: int, num_splits: Any = None, split_sizes: Any = None) -> Any:
    """Parts of given sizes, which are views."""
    if split_sizes is None or axis < 0:
        return None
    sizes = [int(s) for s in np.atleast_1d(split_sizes)]
    ends = np.cumsum(sizes).tolist()
    index = [(slice(None),) * axis + (slice(e - n, e),) for n, e in zip(sizes, ends, strict=True)]

    def parts(x: Any) -> Any:
        if x.shape[axis] != ends[-1]:
            split(x, axis, num_splits, split_sizes)
        return tuple([x[i] for i in index])

    return None if min(sizes) < 0 or num_splits not in (None, len(sizes)) else parts


@register("tile", moves=True)
def tile(x: Any, reps: Any) -> Any:
    """`x` repeated along each axis.

    Raises:
        ValueError: there is not one positive number for each axis.
    """
    counts = [int(r) for r in np.atleast_1d(reps)]
    if len(counts) != np.ndim(x) or min(counts) < 1:
        raise ValueError(f"reps {counts} are not one positive number for each axis of x")
    return np.tile(x, counts)


@register("reverse", moves=True)
def reverse(x: Any, axes: Any = None) -> Any:
    """`x` backwards along axes; all of them where none are given."""
    return np.flip(x, None if axes is None else tuple(int(a) for a in np.atleast_1d(axes)))


@register("reverse_sequence", moves=True)
def reverse_sequence(x: Any, lengths: Any, seq_axis: int = 0, batch_axis: int = 0) -> Any:
    """The first `lengths[b]` steps along `seq_axis` backwards, for each b along `batch_axis`.

    Raises:
        IndexError: an axis is out of bounds.
        ValueError: the axes are one, or the lengths do not fit them.
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
