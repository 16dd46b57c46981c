"""Cosine similarity: of rows, of everything at once, and of groups of channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_ROUNDING = 1e-6


def cosine(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """a.b / (|a| |b|) for each row of two `[T, C]` arrays, in float64; `[T]`.

    NaN where a row has a non-finite value or is all zero: the angle is undefined, and a
    comparison `cosine >= threshold` is then false, never true. Rows are scaled by their largest
    magnitude first, so that no finite value overflows.

    Raises:
        ValueError: the shapes differ; numpy would otherwise compare one row with many.
    """
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    a, b = _scaled(a), _scaled(b)
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = np.sqrt(_dots(a, a) * _dots(b, b))
        result = _dots(a, b) / norms
    clipped: npt.NDArray[np.float64] = np.clip(result, -1.0, 1.0)
    return clipped


def flat_cosine(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """The cosine of two arrays taken as one vector each; NaN as `cosine` is, and for empty ones."""
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    return float(cosine(a.reshape(1, -1), b.reshape(1, -1))[0])


def group_cosines(a: npt.NDArray[Any], b: npt.NDArray[Any], size: int) -> npt.NDArray[np.float64]:
    """The cosine of each `size` channels over all rows of two `[T, C]` arrays; `[ceil(C / size)]`.

    An error that keeps to a few channels, as one palette's group of output channels may, hardly
    moves the cosine of a whole row. The last group may be smaller. A group that is zero on both
    sides agrees, with 1; on one side only its cosine is NaN, as with any value that is not finite.
    """
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    a, b = _grouped(a, size), _grouped(b, size)
    idle = ~(a.any(axis=1) | b.any(axis=1))
    return np.where(idle, 1.0, cosine(a, b))


def is_cosine(value: float) -> bool:
    """Whether a number may be a cosine: in -1..1 but for rounding, or NaN for an undefined one."""
    return math.isnan(value) or abs(value) <= 1 + _ROUNDING


def _grouped(x: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """`[groups, T * size]`, filled up with zeros, which change no cosine."""
    rows, channels = x.shape
    padded = np.pad(x, ((0, 0), (0, -channels % size)))
    groups: npt.NDArray[Any] = padded.reshape(rows, -1, size).transpose(1, 0, 2)
    return groups.reshape(len(groups), -1)


def _dots(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.einsum("tc,tc->t", a, b)
    return found


def _scaled(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: npt.NDArray[np.float64] = x / np.abs(x).max(axis=1, keepdims=True, initial=0.0)
    return scaled
