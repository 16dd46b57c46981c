"""Sums that run along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


@register("cumsum")
def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    """Sums of all elements up to each along an axis.

    Args:
        x: rank 1 or more.
        axis: may be negative.
        exclusive: leave out the element itself, so that the first sum is 0.
        reverse: sum from the last element on.

    Raises:
        ValueError: the axis is out of bounds.
    """
    x = np.asarray(x)
    if reverse:
        return np.flip(cumsum(np.flip(x, axis), axis, exclusive), axis)
    sums = np.cumsum(x, axis=axis, dtype=x.dtype)
    if exclusive:
        sums = np.roll(sums, 1, axis)
        np.moveaxis(sums, axis, 0)[:1] = 0
    return sums
