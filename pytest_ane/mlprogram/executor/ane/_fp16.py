"""fp16 as the ANE reads and writes it; element-wise arithmetic: exact results, rounded once.

Grade of both rules: recorded. Source: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6,
data/06_numerics, on M6 (h18g) and in part on M4 (h16g).

Element-wise arithmetic decodes its operands. Grade: recorded. Source: the same,
numerics3_m6.txt (57 outputs on M6), sbryngelson/ANEForge (7 additions on M5). The range is fp16's
own, 65504; subnormals stay. Maximum, minimum, select and relu are exact as they are (inferred), and
so are absolute values, signs and squares, which the hardware computes without a table (751K); a
division is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.executor._kernels import ufunc
from pytest_ane.mlprogram.executor.ane import Grade, rule

F = TypeVar("F", bound=Callable[..., Any])


def _bitcast(source: Any, target: Any, kind: Any, narrower: Any = None) -> Any:
    """An intrinsic that reads a number's bits as another type, in which it may be rounded first."""

    def define(context: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.fptrunc(arguments[0], narrower) if narrower else arguments[0]
            return builder.bitcast(value, kind)

        return target(source), generate

    return intrinsic(define)


bits_of = _bitcast(types.float64, types.int64, ir.IntType(64))
float_bits_of = _bitcast(types.float32, types.int32, ir.IntType(32))
of_bits = _bitcast(types.int64, types.float64, ir.DoubleType())
pattern_of = _bitcast(types.float32, types.uint16, ir.IntType(16), ir.HalfType())

_DROPPED = 52 - 10
"""Bits of a double's fraction that fp16 has not."""


def decode_number(x: Any) -> Any:
    """`decode` of one number: exponent 31 of fp16 is 255 in float32."""
    bits = float_bits_of(x)
    fraction = (bits >> 13) & 0x3FF
    quiet = fraction | 0x200 if bits & 0x7FFFFF else fraction
    large = np.float32((quiet | 0x400) << 6)
    return np.copysign(large, x) if (bits >> 23) & 0xFF == 0xFF else x


def round_half_away(y: Any) -> Any:
    """The nearest fp16 number, ties away from zero: half a step is added, the rest cut off."""
    magnitude = abs(y)
    bits = bits_of(magnitude) + (1 << (_DROPPED - 1))
    normal = of_bits((bits >> _DROPPED) << _DROPPED)
    steps = magnitude * 2.0**24
    whole = np.floor(steps)
    subnormal = (whole + (1.0 if steps - whole >= 0.5 else 0.0)) * fp16.SMALLEST
    nearest = normal if magnitude >= fp16.MIN_NORMAL else subnormal
    bounded = np.inf if magnitude >= fp16.MAX + 16 else nearest
    return np.float32(np.copysign(bounded, y)) + np.float32(0)


def inline(function: F) -> F:
    """Compile a function for others that are compiled."""
    return cast(F, numba.njit(nogil=True)(function))


rounded_number = inline(round_half_away)
decoded_number = inline(decode_number)


_decode = ufunc("float32(float32)")(decode_number)
_r16 = ufunc("float32(float64)")(round_half_away)


def decode(x: Array) -> FloatArray:
    """Numbers that the ANE takes fp16 inputs for: exponent 31 is an exponent like any other.

    Infinity is 65536, 0x7e00 is 98304, 0x7fff is 131008, each with its sign; there is no NaN.
    A signalling NaN reaches the ANE quietened, by the host's doing. Recorded: 16 outputs on M6.
    """
    return np.asarray(_decode(np.asarray(x, np.float32)))


def r16(y: Array | float) -> FloatArray:
    """The fp16 number nearest to each double, as float32.

    Ties go away from zero (2049 becomes 2050), subnormals stay, -0 becomes +0, and what rounds to
    more than 65504 becomes infinite. Recorded: every output of a sum or of an element-wise
    operation.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(_r16(y))


_BINARY = "float32(float32, float32)"


# float64 holds sums and products of two decoded numbers exactly.
@ufunc(_BINARY)
def _add(x: Any, y: Any) -> Any:
    return rounded_number(np.float64(decoded_number(x)) + np.float64(decoded_number(y)))


@ufunc(_BINARY)
def _sub(x: Any, y: Any) -> Any:
    return rounded_number(np.float64(decoded_number(x)) - np.float64(decoded_number(y)))


@ufunc(_BINARY)
def _mul(x: Any, y: Any) -> Any:
    return rounded_number(np.float64(decoded_number(x)) * np.float64(decoded_number(y)))


@rule(Grade.RECORDED, "add")
def add(x: Any, y: Any) -> FloatArray:
    """`r16(x + y)`: 2048 + 1 is 2050, and 65536 - 65536, an infinity less itself, is 0."""
    return np.asarray(_add(x, y))


@rule(Grade.RECORDED, "sub")
def sub(x: Any, y: Any) -> FloatArray:
    """`r16(x - y)`."""
    return np.asarray(_sub(x, y))


@rule(Grade.RECORDED, "mul")
def mul(x: Any, y: Any) -> FloatArray:
    """`r16(x y)`; 0 times infinity is 0."""
    return np.asarray(_mul(x, y))


# An infinity is 65536 to all of these, and stays one.
_INFERRED: dict[str, Callable[..., Any]] = {
    "abs": lambda x: r16(np.abs(decode(x))),
    "sign": lambda x: r16(np.sign(decode(x))),
    "square": lambda x: mul(x, x),
    "maximum": lambda x, y: r16(np.maximum(decode(x), decode(y))),
    "minimum": lambda x, y: r16(np.minimum(decode(x), decode(y))),
}
for _op, _compute in _INFERRED.items():
    rule(Grade.INFERRED, _op)(_compute)
