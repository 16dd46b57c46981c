"""Greatest absolute difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def max_abs_error(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Greatest |a - b| over two arrays of one shape, in float64; NaN if any difference is NaN.

    numpy's maximum propagates NaN, so a NaN cannot hide. 0.0 for empty arrays.

    Raises:
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    return float(difference.max(initial=0.0))
