"""Greatest differences of single values, absolute and relative, and where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SMALLEST_NORMAL = 2.0**-14
"""Below fp16's smallest normal number its values are equally spaced (IEEE 754-2019, table 3.5):
nothing can be near a reference there in relation to it."""


class Extreme(NamedTuple):
    """A greatest value, and the index of its first occurrence in a `[T, C]` array."""

    value: float
    row: int
    channel: int


def max_abs_error(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Greatest |a - b| over two arrays of one shape, in float64; NaN if any difference is NaN.

    numpy's maximum propagates NaN, so a NaN cannot hide. 0.0 for empty arrays.

    Raises:
        ValueError: the shapes differ.
    """
    return float(_difference(a, b).max(initial=0.0))


def worst_abs_error(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Extreme:
    """`max_abs_error` of two `[T, C]` arrays, neither empty, and where; NaN counts as greatest."""
    return _greatest(_difference(a, b))


def worst_rel_error(
    a: npt.NDArray[Any], b: npt.NDArray[Any], floor: float = SMALLEST_NORMAL
) -> Extreme:
    """Greatest |a - b| / max(|b|, floor) of two `[T, C]` arrays, neither empty, and where.

    NaN, which counts as greatest, if either side has a NaN or the reference is infinite.

    Raises:
        ValueError: the shapes differ.
    """
    difference = _difference(a, b)
    with np.errstate(invalid="ignore"):
        return _greatest(difference / np.maximum(np.abs(np.asarray(b, np.float64)), floor))


def _difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    with np.errstate(invalid="ignore"):
        found: npt.NDArray[np.float64] = np.abs(
            np.asarray(a, np.float64) - np.asarray(b, np.float64)
        )
    return found


def _greatest(x: npt.NDArray[np.float64]) -> Extreme:
    row, channel = np.unravel_index(int(x.argmax()), x.shape)
    return Extreme(float(x[row, channel]), int(row), int(channel))
