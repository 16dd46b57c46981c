"""Scatters: updates put at indices into a copy of the data.

Where places repeat, updates apply one after another in the order of the indices; with mode `update`
the last one stays. Indices are treated as in `gathering`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.gathering import gather, gather_along_axis, gather_nd
from pytest_ane.mlprogram.executor.registry import register

_MODES: dict[str, Any] = {
    "add": np.add,
    "div": np.true_divide,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "sub": np.subtract,
}


def _places(shape: tuple[int, ...]) -> Any:
    """Each element's position in row-major order: gathering these says where updates go."""
    return np.arange(int(np.prod(shape))).reshape(shape)


def _apply(data: Any, places: Any, updates: Any, mode: str) -> Any:
    """`data[places] = mode(data[places], updates)`, one place after another.

    Raises:
        ValueError: the mode is unknown, or updates do not have the places' shape.
        ZeroDivisionError: an integer is divided by zero.
    """
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


@register("scatter")
def scatter(
    data: Any,
    indices: Any,
    updates: Any,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Any:
    """Slices of updates put along an axis of the data.

    Args:
        data: any shape.
        indices: where along the axis.
        updates: shape `data.shape[:axis] + indices.shape + data.shape[axis + 1 :]`.
        axis: may be negative.
        mode: `add`, `div`, `max`, `min`, `mul`, `sub` or `update`.
        validate_indices: negative indices are errors.

    Raises:
        IndexError: an axis or index is out of bounds.
        ValueError: the shape of updates or the mode.
    """
    data = np.asarray(data)
    places = gather(_places(data.shape), indices, axis, validate_indices=validate_indices)
    return _apply(data, places, updates, mode)


@register("scatter_along_axis")
def scatter_along_axis(
    data: Any,
    indices: Any,
    updates: Any,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Any:
    """Updates put at data[..., indices[...], ...] along an axis.

    Indices and updates have the data's shape but for that axis; otherwise as `scatter`.
    """
    data = np.asarray(data)
    places = gather_along_axis(_places(data.shape), indices, axis, validate_indices)
    return _apply(data, places, updates, mode)


@register("scatter_nd")
def scatter_nd(
    data: Any, indices: Any, updates: Any, mode: str = "add", validate_indices: bool = False
) -> Any:
    """Slices of updates put at data[indices[i, ..., :]].

    Updates have shape `indices.shape[:-1] + data.shape[indices.shape[-1] :]`; otherwise as
    `scatter`.
    """
    data = np.asarray(data)
    places = gather_nd(_places(data.shape), indices, validate_indices=validate_indices)
    return _apply(data, places, updates, mode)
