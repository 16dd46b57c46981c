"""Errors by size: relative L2, the worst value, the share that is finite."""

from __future__ import annotations

import math

import numpy as np

from pytest_ane.mlprogram.arrays import Array, DoubleArray
from pytest_ane.mlprogram.metrics.cosine import check_shapes

_NOISE = 1e-6
"""Below it a relative error is what float32 rounds, and other on each processor."""


def relative_l2(a: Array, b: Array) -> DoubleArray:
    """|a - b| / |b| in Euclidean norms for each row of `[T, C]` against a reference; `[T]`.

    In float64 (Golub and Van Loan, Matrix Computations, 4th ed., section 2.2.3). NaN where a value
    is NaN, the reference is not finite, or both rows are zero; infinite where only the reference is
    zero or the row is infinite: no bound from above is then kept. Each pair of rows is scaled by
    its largest magnitude first, so that no finite value overflows.

    Raises:
        ValueError: the shapes differ.
    """
    check_shapes(a, b)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    largest, reference = _largest(a), _largest(b)
    scale = np.maximum(largest, reference)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = a / scale, b / scale
        relative: DoubleArray = _norms(a - b) / _norms(b)
    # An infinite row divided by itself is NaN; its distance from a finite one is infinite.
    relative[np.isinf(largest) & np.isfinite(reference)] = np.inf
    return relative


def in_words(relative: float, digits: int = 3) -> str:
    """A relative error for people; `under 1e-06` for what is float32's own rounding."""
    if math.isnan(relative):
        return "NaN"
    return f"under {_NOISE:g}" if 0 < relative < _NOISE else f"{relative:.{digits}g}"


def worst_abs_error(a: Array, b: Array) -> float:
    """Greatest |a - b| of two `[T, C]` arrays, neither empty, in float64; NaN if any is.

    Raises:
        ValueError: the shapes differ.
    """
    check_shapes(a, b)
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def finite_fraction(x: Array) -> float:
    """Share of values that are neither NaN nor infinite, 0 to 1; 0.0 for an empty array.

    An empty output holds no evidence, so it does not count as finite.
    """
    return float(np.isfinite(x).mean()) if x.size else 0.0


def _largest(x: DoubleArray) -> DoubleArray:
    largest: DoubleArray = np.abs(x).max(axis=1, initial=0.0)
    return largest


def _norms(x: DoubleArray) -> DoubleArray:
    norms: DoubleArray = np.sqrt(np.einsum("tc,tc->t", x, x))
    return norms
