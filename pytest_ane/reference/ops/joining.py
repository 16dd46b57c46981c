"""Operations that join, cut and repeat tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


@register("concat", moves=True)
def concat(values: Any, axis: int, interleave: bool = False) -> Any:
    """Tensors one after another along an axis, or their slices by turns."""
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
    """Parts along an axis: of given sizes, or this many equal ones."""
    if split_sizes is None:
        return tuple(np.split(x, int(num_splits), axis=axis))
    if sum(split_sizes) != x.shape[axis]:
        raise ValueError(f"split_sizes {list(split_sizes)} do not add up to {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(np.asarray(split_sizes))[:-1], axis=axis))


@register("tile", moves=True)
def tile(x: Any, reps: Any) -> Any:
    """`x` repeated along each axis."""
    return np.tile(x, [int(r) for r in reps])


@register("reverse", moves=True)
def reverse(x: Any, axes: Any = None) -> Any:
    """`x` backwards along axes; all of them where none are given."""
    return np.flip(x, None if axes is None else tuple(int(a) for a in np.atleast_1d(axes)))
