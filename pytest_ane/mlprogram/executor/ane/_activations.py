"""Activations by table: each a reduction of its argument, a `Table`, and what undoes the reduction.

Grade: fitted. Source: fingerprints of whole curves on M6 (h18g), 751K
data/06_numerics/f3_lut_m6.txt and lut_ulp_m6.txt: 33 knots (25 for square roots) in fp16.
The two roundings and the mirror were found by fitting them; exact interpolation misses them.
Fingerprints reached are in its tests. Values outside a table's finite range (zero, negative
arguments of roots and logarithms, infinities) are inferred, from the tables' header
entries (751K) and from M1 (sbryngelson/ane-guide part-1/03). Unknown, and not here: sin, cos,
divisions, elu, leaky_relu, hardswish. What the ANE composes of tables and sums comes last: its
cliffs follow from their parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numba.core import types

from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.executor._kernels import compiled
from pytest_ane.mlprogram.executor.ane import Grade, rule
from pytest_ane.mlprogram.executor.ane._fp16 import decode, pattern_of, r16
from pytest_ane.mlprogram.executor.ane._kernel import LIMIT
from pytest_ane.mlprogram.executor.ane.accumulator import LSB, starts
from pytest_ane.mlprogram.executor.ops.elementwise import erf as exact_erf
from pytest_ane.mlprogram.executor.ops.elementwise import gelu as exact_gelu

EVERY = np.arange(1 << 16, dtype=np.uint16)
"""All fp16 numbers, as patterns."""


def rounded(y: Any) -> DoubleArray:
    """`r16` that stays in float64, for steps inside a rule."""
    return r16(np.asarray(y, np.float64)).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Table:
    """fp16 values, as float64, at equidistant knots from `first` on."""

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


SIGMOID_SLOPE, ERF_SLOPE, SILU_SLOPE, GELU_SLOPE = 1.733e-4, 0.0129, 1.25e-3, 7.8e-4
"""Of the lines beyond the tables' ends. The last two are inferred: places of least error."""
INFINITE = 65536.0
"""What an infinity is decoded as."""
LOG2_E = float(np.float16(math.log2(math.e)))
LN_2 = float(np.float16(math.log(2)))


def reduced(x: DoubleArray, base: int) -> tuple[DoubleArray, Any]:
    """`x = m base^k` with m from 1/2 to below base/2: m and k."""
    m, k = np.frexp(x)
    if base == 2:
        return m, k
    odd = k % 2 != 0
    return np.where(odd, m * 2, m), np.where(odd, k - 1, k) // 2


_SQRT = Table.of(np.sqrt, 0.5, 1 / 16, 24)
_RSQRT = Table.of(lambda x: 1 / np.sqrt(x), 0.5, 1 / 16, 24)
_LOG2 = Table.of(np.log2, 0.5, 1 / 64)
_EXP2 = Table.of(np.exp2, 0, 1 / 32)
_INVERSE = Table.of(lambda x: 1 / x, 0.5, 1 / 64)
_TANH = Table.of(np.tanh, 0, 1 / 8)
_SIGMOID = Table.of(lambda x: 1 / (1 + np.exp(-x)), -8, 1 / 2)
_erf_table = cache(lambda: Table.of(exact_erf, 0, 1 / 16))  # Only erf imports torch.


@rule(Grade.FITTED, "sqrt")
@LookUp
def sqrt(x: DoubleArray) -> DoubleArray:
    """With `x = m 4^k`, m in [.5, 2): a table in steps of 1/16 at m, times 2^k; 0 for x <= 0."""
    m, k = reduced(x, 4)
    y = np.ldexp(_SQRT.at(m), k)
    return np.where(x > 0, np.where(x == INFINITE, np.inf, y), 0)


@LookUp
def _rsqrt(x: DoubleArray) -> DoubleArray:
    m, k = reduced(x, 4)
    y = np.ldexp(_RSQRT.at(m), -k)
    return np.where(x > 0, np.where(x == INFINITE, 0, y), np.where(x == 0, np.inf, 0))


@rule(Grade.FITTED, "rsqrt")
def rsqrt(x: Any, epsilon: float = 1e-12) -> FloatArray:
    """As `sqrt` with a table of 1 / sqrt(m), times 2^-k; epsilon is an accumulator's bias."""
    return _rsqrt(biased(x, epsilon))


@LookUp
def _log(x: DoubleArray) -> DoubleArray:
    m, k = reduced(x, 2)
    y = rounded(rounded(_LOG2.at(m) + k) * LN_2)
    return np.where(x > 0, np.where(x == INFINITE, 0, y), np.where(x == 0, -INFINITE * LN_2, 0))


@rule(Grade.FITTED, "log")
def log(x: Any, epsilon: float = 1e-45) -> FloatArray:
    """`x = m 2^k`, m in [.5, 1): `r16(r16(table of log2(m) + k) * 355/512)`, rounded at each step.

    The logarithm of an infinity is 0, which is what softplus falls to beyond its cliff.
    """
    return _log(biased(x, epsilon))


@LookUp
def _exp2(t: DoubleArray) -> DoubleArray:
    i = np.floor(t)
    power = np.clip(i, -100, 100).astype(int)
    return np.asarray(np.ldexp(_EXP2.at(t - i, mirrored=t < 0), power))


@rule(Grade.INFERRED, "exp2")
def exp2(x: Any) -> FloatArray:
    """`exp` without its product."""
    return _exp2(x)


@rule(Grade.FITTED, "exp")
@LookUp
def exp(x: DoubleArray) -> DoubleArray:
    """`t = r16(x r16(log2 e))`, i = floor(t): table of 2^f on the fraction, times 2^i."""
    t = rounded(x * LOG2_E)
    return np.asarray(_exp2(t), np.float64)


@LookUp
def _inverse(x: DoubleArray) -> DoubleArray:
    m, k = reduced(np.abs(x), 2)
    y = np.ldexp(_INVERSE.at(m), -k)
    y = np.where(np.abs(x) == INFINITE, 0, np.where(x == 0, np.inf, y))
    return np.asarray(np.copysign(y, x))


@rule(Grade.FITTED, "inverse")
def inverse(x: Any, epsilon: float = 1e-4) -> FloatArray:
    """`x + epsilon` in an accumulator, r16; |x| = m 2^k, table of 1 / m, times 2^-k, and the sign.

    The default epsilon of 1e-4 is 7 LSB, 1.068e-4.
    """
    return _inverse(biased(x, epsilon))


def biased(x: Any, epsilon: float) -> FloatArray:
    """`x + epsilon`, the epsilon as an accumulator's bias; x alone where that is below an LSB."""
    steps = math.floor(epsilon / LSB + 0.5)
    if steps == 0:
        return np.asarray(x, np.float32)
    total = starts(np.asarray(x)) + steps
    overflowed = np.abs(total) >= LIMIT
    return rounded(np.where(overflowed, np.copysign(np.inf, total), total * LSB)).astype(np.float32)


@rule(Grade.FITTED, "tanh")
@LookUp
def tanh(x: DoubleArray) -> DoubleArray:
    """|x| up to 4 in steps of 1/8, and 1 beyond, with the sign. The tail is unknown."""
    y = np.where(np.abs(x) <= _TANH.last, _TANH.at(np.abs(x)), 1)
    return np.asarray(np.copysign(y, x))


@rule(Grade.FITTED, "sigmoid")
@LookUp
def sigmoid(x: DoubleArray) -> DoubleArray:
    """[-8, 8] in steps of 1/2; on the left a line to 0 near -9.93, on the right 1 from 8.32."""
    left = np.maximum(rounded(_SIGMOID.values[0] - rounded(SIGMOID_SLOPE * (-8 - x))), 0)
    inner = _SIGMOID.at(x, mirrored=x < 0)
    right = np.where(x >= 8.32, 1, _SIGMOID.values[-1])
    return np.where(x < -8, left, np.where(x > 8, right, inner))


@rule(Grade.FITTED, "erf")
@LookUp
def erf(x: DoubleArray) -> DoubleArray:
    """|x| up to 2 in steps of 1/16, then a line to 1, with the sign."""
    size = np.abs(x)
    table = _erf_table()
    tail = np.minimum(rounded(table.values[-1] + rounded(ERF_SLOPE * (size - 2))), 1)
    return np.asarray(np.copysign(np.where(size <= 2, table.at(size), tail), x))


def _silu(x: DoubleArray) -> DoubleArray:
    return np.asarray(x / (1 + np.exp(-x)))


_silu_table = cache(lambda: fitted(_silu, -8, 1 / 2, -1787 * 2.0**-20))
_gelu_table = cache(lambda: fitted(exact_gelu, -4, 1 / 4, -1581 * 2.0**-21))


def _fitted(table: Table, x: DoubleArray, slope: float) -> DoubleArray:
    """A fitted table; x itself on the right of it, a line up to 0 on the left."""
    tail = np.minimum(rounded(table.values[0] + rounded(slope * (table.first - x))), 0)
    inner = table.at(x, mirrored=x < 0)
    return np.where(x > table.last, x, np.where(x < table.first, tail, inner))


@rule(Grade.FITTED, "silu")
@LookUp
def silu(x: DoubleArray) -> DoubleArray:
    """[-8, 8] in steps of 1/2, knots fitted to the function; x on the right, on the left a line."""
    return _fitted(_silu_table(), x, SILU_SLOPE)


@LookUp
def _gelu_values(x: DoubleArray) -> DoubleArray:
    return _fitted(_gelu_table(), x, GELU_SLOPE)


@rule(Grade.FITTED, "gelu")
def gelu(x: Any, mode: str = "EXACT") -> FloatArray | None:
    """[-4, 4] in steps of 1/4, knots fitted to the exact function; x on the right.

    EXACT and TANH_APPROXIMATION share one table; the third mode is a composition, so unknown.
    """
    return None if mode == "SIGMOID_APPROXIMATION" else _gelu_values(x)


@rule(Grade.INFERRED, "softplus")
def softplus(x: Any) -> FloatArray:
    """`log(exp(x) + 1)`, the 1 as an accumulator's bias: infinite from exp(x) + 1 >= 32768.

    So it falls to 0 from x = 10.3984. Grade: inferred from the rules of its parts; predicts the
    recorded cliff at about 10.4 (apple/coremltools issue 2687, M3 Max, confirmed on M4), while
    fp16's own limit would put it at 11.09.
    """
    return log(biased(exp(x), 1.0))


@rule(Grade.INFERRED, "reduce_log_sum_exp")
def logsumexp(x: Any, axes: Any = None, keep_dims: bool = False) -> FloatArray:
    """`log(sum of exp(x))` with the sum in fp16, infinite beyond 65504: log of that is 0.

    Grade: inferred. 32 equal channels fall to 0 from 7.6313, as recorded (apple/coremltools issue
    2690, M3 Max); in a Q15.16 accumulator it would be 6.941. The order of the partial sums, each
    rounded with ties away from zero, is unknown: here in order of the elements.
    """
    y = np.asarray(exp(x))
    axes = tuple(range(y.ndim)) if axes is None else tuple(int(a) % y.ndim for a in np.ravel(axes))
    kept = [a for a in range(y.ndim) if a not in axes]
    rows = y.transpose(*kept, *axes).reshape(*(y.shape[a] for a in kept), -1)
    total = np.zeros(rows.shape[:-1], np.float32)
    for k in range(rows.shape[-1]):
        total = r16(total.astype(np.float64) + rows[..., k])
    result = log(total)
    return np.expand_dims(result, axes) if keep_dims else result
