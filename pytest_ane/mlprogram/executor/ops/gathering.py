"""Gathers, scatters, and the indices of what is not zero.

A negative index counts from the end. What Core ML reads beyond the ends is undefined unless
`validate_indices` is set, so such an index is an error here always; with `validate_indices` a
negative one is an error too, as from iOS17 on it counts as beyond the ends.

Scatters put updates at indices into a copy of the data. Where places repeat, updates apply one
after another in the order of the indices; with mode `update` the last one stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register


def checked(indices: Any, bounds: Any, validate: bool) -> Any:
    """Indices as non-negative integers below `bounds`, which broadcasts against them."""
    indices, bounds = np.asarray(indices).astype(np.int64), np.asarray(bounds)
    least = 0 if validate else -bounds
    if np.any((indices < least) | (indices >= bounds)):
        raise IndexError(
            f"indices from {indices.min()} to {indices.max()} are out of bounds "
            f"for axes of size {bounds}{', validated' if validate else ''}"
        )
    return np.where(indices < 0, indices + bounds, indices)


def _batches(x: Any, shape: tuple[int, ...], count: int) -> tuple[Any, ...]:
    """Places along the `count` leading axes, to broadcast against indices of a shape."""
    if x.shape[:count] != shape[:count]:
        raise ValueError(f"the first {count} axes of x {x.shape} and indices {shape} differ")
    return np.indices(shape, sparse=True)[:count]


@register("gather", moves=True)
def gather(
    x: Any, indices: Any, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Any:
    """Slices of x along an axis, in the order of the indices; the first `batch_dims` axes agree.

    Of shape `x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1 :]`.
    """
    x, axis = np.asarray(x), range(np.ndim(x))[axis]
    indices = checked(indices, x.shape[axis], validate_indices)
    if batch_dims == 0:
        return np.take(x, indices, axis=axis)
    if not 0 < batch_dims <= min(axis, indices.ndim):
        raise ValueError(
            f"batch_dims {batch_dims} exceeds axis {axis} or the rank of indices {indices.ndim}"
        )
    rows = np.moveaxis(x, axis, batch_dims)
    place = (*_batches(x, indices.shape, batch_dims), indices)
    taken = rows[place]
    count = indices.ndim - batch_dims
    return np.moveaxis(taken, range(batch_dims, batch_dims + count), range(axis, axis + count))


@register("gather_along_axis", moves=True)
def gather_along_axis(x: Any, indices: Any, axis: int = 0, validate_indices: bool = False) -> Any:
    """x[..., indices[...], ...] along an axis; the indices have x's shape but for that axis."""
    x, indices = np.asarray(x), np.asarray(indices)
    axis = range(x.ndim)[axis]
    others = [i for i in range(x.ndim) if i != axis]
    if indices.ndim != x.ndim or any(indices.shape[i] != x.shape[i] for i in others):
        raise ValueError(f"indices {indices.shape} and x {x.shape} differ in more than axis {axis}")
    return np.take_along_axis(x, checked(indices, x.shape[axis], validate_indices), axis=axis)


@register("gather_nd", moves=True)
def gather_nd(x: Any, indices: Any, batch_dims: int = 0, validate_indices: bool = False) -> Any:
    """x[indices[i, ..., :]]: each row of the last axis of indices is a place in x.

    Of shape `indices.shape[:-1] + x.shape[batch_dims + indices.shape[-1] :]`.
    """
    x, indices = np.asarray(x), np.asarray(indices)
    if indices.ndim == 0 or not 0 <= batch_dims < indices.ndim:
        raise ValueError(f"indices of rank {indices.ndim} leave no rows after {batch_dims} axes")
    depth = indices.shape[-1]
    places = checked(indices, x.shape[batch_dims : batch_dims + depth], validate_indices)
    shape = indices.shape[:-1] + x.shape[batch_dims + depth :]
    place = (*_batches(x, indices.shape[:-1], batch_dims), *np.moveaxis(places, -1, 0))
    return np.broadcast_to(x[place], shape)


# In row-major order, (count, rank).
register("non_zero", moves=True)(lambda x: np.argwhere(x).astype(np.int32))

_MODES: dict[str, Any] = {"add": np.add, "div": np.true_divide, "max": np.maximum,
                          "min": np.minimum, "mul": np.multiply, "sub": np.subtract}  # fmt: skip


def _apply(data: Any, places: Any, updates: Any, mode: str) -> Any:
    """`data[places] = mode(data[places], updates)`, one place after another."""
    updates = np.asarray(updates)
    if updates.shape != places.shape:
        raise ValueError(f"updates have shape {updates.shape}; it should be {places.shape}")
    if mode != "update" and mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r}; there are: {', '.join(_MODES)}, update")
    whole = np.issubdtype(data.dtype, np.integer)
    if mode == "div" and whole and not updates.all():
        raise ZeroDivisionError("integers are divided by zero")
    # Integers divide as floats, and are cut off towards zero in the end, which comes to the same.
    out = data.astype(np.float64 if mode == "div" and whole else data.dtype).reshape(-1)
    if mode == "update":
        out[places.reshape(-1)] = updates.reshape(-1)
    else:
        _MODES[mode].at(out, places.reshape(-1), updates.reshape(-1))
    return out.reshape(data.shape).astype(data.dtype, copy=False)


def _places(shape: tuple[int, ...]) -> Any:
    """Each element's position in row-major order: gathering these says where updates go."""
    return np.arange(int(np.prod(shape))).reshape(shape)


@register("scatter")
def scatter(
    data: Any, indices: Any, updates: Any, axis: int = 0, mode: str = "add",
    validate_indices: bool = False,
) -> Any:  # fmt: skip
    """Slices of updates put along an axis of the data, at the indices.

    The updates have shape `data.shape[:axis] + indices.shape + data.shape[axis + 1 :]`; `mode` is
    `add`, `div`, `max`, `min`, `mul`, `sub` or `update`.
    """
    data = np.asarray(data)
    places = gather(_places(data.shape), indices, axis, validate_indices=validate_indices)
    return _apply(data, places, updates, mode)


@register("scatter_along_axis")
def scatter_along_axis(
    data: Any, indices: Any, updates: Any, axis: int = 0, mode: str = "add",
    validate_indices: bool = False,
) -> Any:  # fmt: skip
    """`scatter` at data[..., indices[...], ...]; all have the data's shape but for that axis."""
    data = np.asarray(data)
    places = gather_along_axis(_places(data.shape), indices, axis, validate_indices)
    return _apply(data, places, updates, mode)


@register("scatter_nd")
def scatter_nd(
    data: Any, indices: Any, updates: Any, mode: str = "add", validate_indices: bool = False
) -> Any:
    """`scatter` at data[indices[i, ..., :]].

    Updates have shape `indices.shape[:-1] + data.shape[indices.shape[-1] :]`.
    """
    data = np.asarray(data)
    places = gather_nd(_places(data.shape), indices, validate_indices=validate_indices)
    return _apply(data, places, updates, mode)
