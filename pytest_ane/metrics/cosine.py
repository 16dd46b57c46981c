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
    return _angle(_dots(a, b), _dots(a, a), _dots(b, b))


def group_products(a: npt.NDArray[Any], b: npt.NDArray[Any], size: int) -> npt.NDArray[np.float64]:
    """a.b, a.a and b.b of each `size` channels over all rows of `[T, C]`; `[3, ceil(C / size)]`.

    They add up: over blocks of rows, and over groups to those of everything. The last group may be
    smaller. Values of float32, whose squares float64 holds, are expected.

    Raises:
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    starts = np.arange(0, a.shape[1], size)
    if not starts.size:
        return np.zeros((3, 0))
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        sums = [np.einsum("tc,tc->c", x, y) for x, y in ((a, b), (a, a), (b, b))]
        found: npt.NDArray[np.float64] = np.add.reduceat(np.stack(sums), starts, axis=1)
    return found


def flat_cosine(products: npt.NDArray[np.float64]) -> float:
    """The cosine of everything as one vector, from `group_products`; NaN if it is undefined."""
    ab, aa, bb = products.sum(axis=1).tolist()
    return float(_angle(np.array(ab), np.array(aa), np.array(bb)))


def group_cosines(products: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The cosine of each group of channels, from `group_products`; `[groups]`.

    An error that keeps to a few channels, as one palette's group of output channels may, hardly
    moves the cosine of a whole row. A group that is zero on both sides agrees, with 1; on one side
    only its cosine is NaN, as with any value that is not finite.
    """
    ab, aa, bb = products
    return np.where((aa == 0) & (bb == 0), 1.0, _angle(ab, aa, bb))


def is_cosine(value: float) -> bool:
    """Whether a number may be a cosine: in -1..1 but for rounding, or NaN for an undefined one."""
    return math.isnan(value) or abs(value) <= 1 + _ROUNDING


def _angle(
    ab: npt.NDArray[np.float64], aa: npt.NDArray[np.float64], bb: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        found: npt.NDArray[np.float64] = np.clip(ab / (np.sqrt(aa) * np.sqrt(bb)), -1.0, 1.0)
    return found


def _dots(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.einsum("tc,tc->t", a, b)
    return found


def _scaled(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: npt.NDArray[np.float64] = x / np.abs(x).max(axis=1, keepdims=True, initial=0.0)
    return scaled
