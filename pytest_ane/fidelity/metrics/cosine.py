"""Cosine similarity by rows."""

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
        norms = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        result = (a * b).sum(axis=1) / norms
    clipped: npt.NDArray[np.float64] = np.clip(result, -1.0, 1.0)
    return clipped


def is_cosine(value: float) -> bool:
    """Whether a number may be a cosine: in -1..1 but for rounding, or NaN for an undefined one."""
    return math.isnan(value) or abs(value) <= 1 + _ROUNDING


def _scaled(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: npt.NDArray[np.float64] = x / np.abs(x).max(axis=1, keepdims=True, initial=0.0)
    return scaled
