"""Signal-to-noise ratio in decibels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.metrics.relative import relative_l2


def snr(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """10 log10(sum b^2 / sum (a - b)^2) for each row of `[T, C]` against a reference; `[T]` in dB.

    Called SQNR where quantization makes the noise: about 6 dB for every bit (W. R. Bennett, Spectra
    of Quantized Signals, 1948). Infinite for equal rows; NaN and -inf, which no bound from below
    lets pass, where `relative_l2` is NaN or infinite.

    Raises:
        ValueError: the shapes differ.
    """
    return decibels(relative_l2(a, b))


def decibels(relative: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A relative L2 error as a signal-to-noise ratio: -20 log10 of it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = -20 * np.log10(np.asarray(relative, np.float64))
    return found
