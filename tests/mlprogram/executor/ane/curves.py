"""Fingerprints of activations over the grids on which they were recorded.

Source of the grids and statistics: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6,
tools/06_numerics/lut_err.py: 524,288 points between two ends, rounded to fp16, each number once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from pytest_ane.mlprogram.executor.ane import _activations as ane


def erf(x: Any) -> Any:
    """torch's: the count of minima hangs on its last bits at one place."""
    return torch.erf(torch.from_numpy(x)).numpy()


CURVES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], float, float]] = {
    "sqrt": (ane.sqrt, np.sqrt, 2**-10, 1000),
    "rsqrt": (ane.rsqrt, lambda x: 1 / np.sqrt(x), 2**-6, 1000),
    "log": (ane.log, np.log, 2**-10, 1000),
    "exp": (ane.exp, np.exp, -12, 10),
    "inverse": (ane.inverse, lambda x: 1 / x, 2**-6, 1000),
    "tanh": (ane.tanh, np.tanh, -6, 6),
    "sigmoid": (ane.sigmoid, lambda x: 1 / (1 + np.exp(-x)), -12, 12),
    "erf": (ane.erf, erf, -4, 4),
    "silu": (ane.silu, lambda x: x / (1 + np.exp(-x)), -12, 12),
    "gelu": (ane.gelu, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), -8, 8),
    "gelu_tanh": (
        ane.gelu,
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        -8, 8,
    ),
}  # fmt: skip


class Fingerprint(NamedTuple):
    """Statistics of a curve's errors.

    Attributes:
        points: fp16 numbers of the grid.
        largest: absolute error, to 4 digits.
        ulp: largest error in ulp of the exact value, to 1 decimal.
        place: of that error, to 4 digits.
        minima: number of places where the error is least among its neighbours.
        places: the first 20 of them.
    """

    points: int
    largest: str
    ulp: float
    place: str
    minima: int
    places: list[float]


def fingerprint(name: str) -> Fingerprint:
    """Of a curve as computed here."""
    compute, exact, low, high = CURVES[name]
    space: Any = np.geomspace if low > 0 else np.linspace
    x = np.unique(space(low, high, 2048 * 256).astype(np.float16)).astype(np.float64)
    expected = exact(x)
    error = np.abs(compute(x).astype(np.float64) - expected)
    exponents = np.frexp(np.maximum(np.abs(expected), 2.0**-24))[1] - 1
    ulps = error / 2.0 ** (np.maximum(exponents, -14) - 10)
    worst = int(np.argmax(ulps))
    smooth = np.convolve(error, np.ones(9) / 9, mode="same")
    windows = np.lib.stride_tricks.sliding_window_view(smooth, 19)
    inner = smooth[9:-9]
    least = np.flatnonzero((inner == windows.min(1)) & (inner < 0.3 * smooth.max())) + 9
    return Fingerprint(
        len(x), f"{error.max():.3e}", round(float(ulps[worst]), 1), f"{x[worst]:.4g}",
        len(least), np.round(x[least[:20]], 4).tolist(),
    )  # fmt: skip
