"""Look-up tables of the ANE's activations, and the interpolation between their knots.

Grade: fitted. Source: fingerprints of whole curves on M6 (h18g), 751K
data/06_numerics/f3_lut_m6.txt and lut_ulp_m6.txt: 33 knots (25 for square roots) in fp16.
The two roundings and the mirror were found by fitting them; exact interpolation misses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba.core import types

from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.executor.ane.fp16 import decode, pattern_of, r16
from pytest_ane.mlprogram.executor.kernels import compiled

EVERY = np.arange(1 << 16, dtype=np.uint16)
"""All fp16 numbers, as patterns."""


def rounded(y: Any) -> DoubleArray:
    """`r16` that stays in float64, for steps inside a rule."""
    return r16(np.asarray(y, np.float64)).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Table:
    """Values at equidistant knots.

    Attributes:
        first: place of the first knot.
        step: between two knots.
        values: fp16 numbers at the knots, as float64.
    """

    first: float
    step: float
    values: DoubleArray

    @classmethod
    def of(cls, function: Any, first: float, step: float, intervals: int = 32) -> Table:
        """fp16 values (ties to even, as a compiler rounds) of a function at its knots."""
        knots = first + step * np.arange(intervals + 1)
        return cls(first, step, np.asarray(function(knots)).astype(np.float16).astype(np.float64))

    @property
    def last(self) -> float:
        """Place of the last knot."""
        return self.first + self.step * (len(self.values) - 1)

    def at(self, x: DoubleArray, mirrored: Any = False) -> DoubleArray:
        """`r16(T[i] + r16((T[i + 1] - T[i]) f))`, f the part of the interval that x has passed.

        The arithmetic is of sign and magnitude: f counts from the knot nearer to zero, so where
        `mirrored`, for negative arguments, it is `r16(T[i + 1] - r16((T[i + 1] - T[i]) (1 - f)))`.
        """
        place = (np.clip(x, self.first, self.last) - self.first) / self.step
        i = np.minimum(np.floor(place).astype(int), len(self.values) - 2)
        f = place - i
        low, high = self.values[i], self.values[i + 1]
        upward = rounded(low + rounded((high - low) * f))
        return np.where(mirrored, rounded(high - rounded((high - low) * (1 - f))), upward)


def fitted(function: Any, first: float, step: float, centre: float, intervals: int = 32) -> Table:
    """Knots whose interpolation is nearest to a function over all normal fp16 inputs.

    In least squares. Every fp16 input counts once, so those near zero, which are many, weigh most.
    The knot at zero is `centre`, which the largest recorded error in ulp gives.
    """
    x = decode(EVERY.view(np.float16)).astype(np.float64)
    last = first + step * intervals
    x = x[(np.abs(x) >= 2.0**-14) & (x >= first) & (x <= last)]
    place = (x - first) / step
    i = np.minimum(np.floor(place).astype(int), intervals - 1)
    f = place - i
    design = np.zeros((len(x), intervals + 1))
    rows = np.arange(len(x))
    design[rows, i], design[rows, i + 1] = 1 - f, f
    knots = np.linalg.lstsq(design, function(x), rcond=None)[0]
    knots[intervals // 2] = centre
    return Table(first, step, knots.astype(np.float16).astype(np.float64))


@compiled(types.Array(types.float32, 1, "C", readonly=True), types.float32[::1], types.float32[::1])
def _look_up(x: Any, values: Any, out: Any) -> None:
    """The value of each fp16 number, by its pattern."""
    for i in range(len(x)):
        out[i] = values[pattern_of(x[i])]


class LookUp:
    """A function of one fp16 number, computed once for each of the 65,536."""

    def __init__(self, function: Callable[[DoubleArray], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @cached_property
    def values(self) -> FloatArray:
        """By pattern."""
        x = decode(EVERY.view(np.float16)).astype(np.float64)
        with np.errstate(all="ignore"):
            return r16(self._function(x))

    def __call__(self, x: Any) -> FloatArray:
        """fp16 numbers of any shape, to fp16 numbers as float32."""
        numbers = np.ascontiguousarray(x, np.float32)
        out = np.empty(np.shape(x), np.float32)
        _look_up(numbers.reshape(-1), self.values, out.reshape(-1))
        return out
