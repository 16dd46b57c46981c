"""Activations by table: each a reduction of its argument, a `Table`, and what undoes the reduction.

Grade: fitted, on M6 (h18g); see `tables`. Fingerprints reached are in tests/mlprogram/executor/ane. Values
outside a table's finite range (zero, negative arguments of roots and logarithms, infinities) are
inferred, from the tables' header entries (751K) and from M1 (sbryngelson/ane-guide part-1/03).
Unknown, and not here: sin, cos, divisions, elu, leaky_relu, hardswish.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.executor.ane.accumulator import LSB, starts
from pytest_ane.mlprogram.executor.ane.grades import Grade, rule
from pytest_ane.mlprogram.executor.ane.kernel import LIMIT
from pytest_ane.mlprogram.executor.ane.tables import LookUp, Table, fitted, rounded
from pytest_ane.mlprogram.executor.ops.elementwise import error_function

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
_ERF = Table.of(lambda x: error_function(x, exact=True), 0, 1 / 16)


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
    tail = np.minimum(rounded(_ERF.values[-1] + rounded(ERF_SLOPE * (size - 2))), 1)
    return np.asarray(np.copysign(np.where(size <= 2, _ERF.at(size), tail), x))


def _silu(x: DoubleArray) -> DoubleArray:
    return np.asarray(x / (1 + np.exp(-x)))


def _gelu(x: DoubleArray) -> DoubleArray:
    z = error_function(x / math.sqrt(2), exact=True)
    return np.asarray(0.5 * x * (1 + z))


@cache
def _silu_table() -> Table:
    return fitted(_silu, -8, 1 / 2, -1787 * 2.0**-20)


@cache
def _gelu_table() -> Table:
    return fitted(_gelu, -4, 1 / 4, -1581 * 2.0**-21)


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
