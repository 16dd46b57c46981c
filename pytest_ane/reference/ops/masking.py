"""The band of a matrix, and the places of what is not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


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


@register("non_zero", moves=True)
def non_zero(x: Any) -> Any:
    """The indices of elements that are not zero in row-major order, (count, rank) as int32."""
    return np.argwhere(x).astype(np.int32)
