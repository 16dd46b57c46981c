"""Relative L2 error, and the same in decibels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def relative_l2(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """|a - b| / |b| in Euclidean norms for each row of `[T, C]` against a reference; `[T]`.

    In float64 (Golub and Van Loan, Matrix Computations, 4th ed., section 2.2.3). NaN where a value
    is NaN, the reference is not finite, or both rows are zero; infinite where only the reference is
    zero or the row is infinite: no bound from above is then kept. Each pair of rows is scaled by
    its largest magnitude first, so that no finite value overflows.

    Raises:
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    most, ours = _largest(a), _largest(b)
    scale = np.maximum(most, ours)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = a / scale, b / scale
        found: npt.NDArray[np.float64] = _norms(a - b) / _norms(b)
    # An infinite row divided by itself is NaN; its distance from a finite one is infinite.
    infinite = np.isinf(most) & np.isfinite(ours)
    found[infinite] = np.inf
    return found


def _largest(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.abs(x).max(axis=1, initial=0.0)
    return found


def _norms(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.sqrt(np.einsum("tc,tc->t", x, x))
    return found
