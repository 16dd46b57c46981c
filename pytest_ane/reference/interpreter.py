"""A compiled interpreter of arithmetic on few numbers, which numpy takes longer to call than to do.

A program is a table of instructions on one buffer of float32 numbers, into which every one writes
`n` numbers from `out` on; what they read is written before. Bit for bit they give what numpy
does, but exponentials, which may differ in the last bit, and products, which sum in any order.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, register_jitable

from pytest_ane.reference.kernels import compiled, multiply_one, round_number


class Kind(IntEnum):
    """What an instruction does with the numbers from `a` and from `b` on."""

    GATHER = 0
    """Numbers from anywhere: their places stand in the index from `a` on."""
    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    MAX = 5
    MIN = 6
    ABS = 7
    SQRT = 8
    SUM = 9
    """One number, the sum of `b` numbers, 128 at most: a leaf of numpy's sums by halves."""
    ROW_MAX = 10
    """One number, the largest of `b` numbers; so the next one."""
    ROW_MIN = 11
    SILU = 12
    SOFTMAX = 13
    """Of rows of `b` numbers each."""
    PRODUCT = 14
    """With a weight `[n, k]` of fp16 numbers, whose address `b` is."""


(_GATHER, _ADD, _SUB, _MUL, _DIV, _MAX, _MIN, _ABS, _SQRT, _SUM, _ROW_MAX, _ROW_MIN, _SILU,
 _SOFTMAX, _PRODUCT) = map(int, Kind)  # fmt: skip
LEAF = 128
"""Most numbers of a `SUM`: numpy sums twice as many by halves."""
_CODE = types.Array(types.int64, 2, "C", readonly=True)
_INDEX = types.Array(types.int64, 1, "C", readonly=True)


@register_jitable
def _leaf(x: Any) -> Any:
    """As numpy's `pairwise_sum` (loops_utils.h.src): eight sums side by side, then the rest."""
    total = np.float32(0)
    rest = 0
    if len(x) >= 8:
        rest = len(x) - len(x) % 8
        a, b, c, d, e, f, g, h = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
        for j in range(8, rest, 8):
            a += x[j]
            b += x[j + 1]
            c += x[j + 2]
            d += x[j + 3]
            e += x[j + 4]
            f += x[j + 5]
            g += x[j + 6]
            h += x[j + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for j in range(rest, len(x)):
        total += x[j]
    return total


def _as_float(context: Any, pattern: Any) -> Any:
    """The number of a bit pattern of float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


_number: Any = intrinsic(_as_float)
_PER_LN2 = np.float32(1 / math.log(2))
_LN2 = np.float32(355 / 512), np.float32(math.log(2) - 355 / 512)
"""Its products with whole numbers below 2^15 are exact, and what it lacks (Cody and Waite 1980)."""
_TAYLOR = tuple(np.float32(1 / math.factorial(k)) for k in range(8))
"""Up to half of ln 2 what is left out is below 6e-9."""
_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7 = _TAYLOR
_ONE = np.float32(1)
_LEAST, _MOST = np.float32(-104), np.float32(89)
"""From there on exp is 0 or infinite."""


@register_jitable
def _exp(x: Any) -> Any:
    """`exp(x)` to two units of float32's last place; unlike libm's, for a vector at a time."""
    x = _LEAST if x < _LEAST else x
    x = _MOST if x > _MOST else x
    whole = np.floor(x * _PER_LN2 + np.float32(0.5))
    r = (x - whole * _LN2[0]) - whole * _LN2[1]
    y = _T0 + r * (_T1 + r * (_T2 + r * (_T3 + r * (_T4 + r * (_T5 + r * (_T6 + r * _T7))))))
    # In two steps, for neither zero nor infinity is a power of two.
    power = np.int32(0) if x != x else np.int32(whole)
    half = power >> 1
    bias = np.int32(127)
    return y * _number((half + bias) << 23) * _number((power - half + bias) << 23)


@register_jitable
def _top(x: Any) -> Any:
    """The largest, of which NaN is one."""
    top = x[0]
    for j in range(1, len(x)):
        top = x[j] if x[j] > top or x[j] != x[j] else top
    return top


@register_jitable
def _binary(kind: Any, x: Any, z: Any, out: Any) -> None:
    """Of two rows of numbers."""
    if kind == _ADD:
        for j in range(len(out)):
            out[j] = x[j] + z[j]
    elif kind == _SUB:
        for j in range(len(out)):
            out[j] = x[j] - z[j]
    elif kind == _MUL:
        for j in range(len(out)):
            out[j] = x[j] * z[j]
    elif kind == _DIV:
        for j in range(len(out)):
            out[j] = x[j] / z[j]
    elif kind == _MAX:
        for j in range(len(out)):
            out[j] = x[j] if x[j] >= z[j] or x[j] != x[j] else z[j]
    elif kind == _MIN:
        for j in range(len(out)):
            out[j] = x[j] if x[j] <= z[j] or x[j] != x[j] else z[j]


@register_jitable
def _softmax(x: Any, out: Any) -> None:
    """`exp(x) / sum of exp(x)`, shifted by the maximum."""
    top = _top(x)
    for j in range(len(x)):
        out[j] = _exp(x[j] - top)
    total = _leaf(out)
    for j in range(len(x)):
        out[j] /= total


def _at_address(context: Any, address: Any) -> Any:
    """A pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


_pointer: Any = intrinsic(_at_address)
_array: Any = numba.carray  # type: ignore[attr-defined]


@compiled(_CODE, _INDEX, types.float32[::1], error_model="numpy")
def run(code: Any, index: Any, buffer: Any) -> None:
    """Run instructions `[kind, out, n, a, b, k, rounds]` on a buffer.

    `rounds` says whether the results are rounded to fp16. Of NaN and a number extremes are NaN.
    """
    for i in range(len(code)):
        kind, out, n, a, b = code[i, 0], code[i, 1], code[i, 2], code[i, 3], code[i, 4]
        y = buffer[out : out + n]
        # Slices, for an index of which it is not known that it is none from the end is slow.
        if kind == _GATHER:
            places = index[a : a + n]
            for j in range(n):
                y[j] = buffer[places[j]]
        elif kind <= _MIN:
            _binary(kind, buffer[a : a + n], buffer[b : b + n], y)
        elif kind == _ABS:
            x = buffer[a : a + n]
            for j in range(n):
                y[j] = abs(x[j])
        elif kind == _SQRT:
            x = buffer[a : a + n]
            for j in range(n):
                y[j] = np.sqrt(x[j])
        elif kind == _SILU:
            x = buffer[a : a + n]
            for j in range(n):
                y[j] = x[j] * (_ONE / (_ONE + _exp(-x[j])))
        elif kind == _SUM:
            y[0] = _leaf(buffer[a : a + b])
        elif kind == _ROW_MAX:
            y[0] = _top(buffer[a : a + b])
        elif kind == _ROW_MIN:
            x = buffer[a : a + b]
            y[0] = x[0]
            for j in range(1, b):
                y[0] = x[j] if x[j] < y[0] or x[j] != x[j] else y[0]
        elif kind == _SOFTMAX:
            for row in range(0, n, b):
                _softmax(buffer[a + row : a + row + b], y[row : row + b])
        elif kind == _PRODUCT:
            k = code[i, 5]
            weight = _array(_pointer(b), (n, k), np.uint16)
            multiply_one(weight, buffer[a : a + k], y)
        if code[i, 6]:
            for j in range(n):
                y[j] = round_number(y[j])
