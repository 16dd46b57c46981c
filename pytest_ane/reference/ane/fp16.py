"""fp16 as the ANE reads and writes it.

Grade of both rules: recorded. Source: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6,
data/06_numerics, on M6 (h18g) and in part on M4 (h16g).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from pytest_ane.core.arrays import Array, FloatArray
from pytest_ane.reference.kernels import Patterns, cached

LARGEST = 65504.0
"""The largest finite fp16 number."""


def patterns(x: Array) -> Patterns:
    """Bits of fp16 numbers that are carried in any floating type; exact, NaN's first bits kept."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x).astype(np.float16, copy=False).view(np.uint16)


def decode(x: Array) -> FloatArray:
    """Numbers that the ANE takes fp16 inputs for: exponent 31 is an exponent like any other.

    Infinity is 65536, 0x7e00 is 98304, 0x7fff is 131008, each with its sign; there is no NaN.
    A signalling NaN reaches the ANE quietened, by the host's doing. Recorded: 16 outputs on M6.

    Args:
        x: fp16 numbers in any floating type.
    """
    numbers = np.asarray(x, np.float32)
    if np.isfinite(numbers).all():
        return numbers
    bits = patterns(numbers).astype(np.int32)
    is_nan = np.isnan(numbers)
    bits = np.where(is_nan, bits | 0x200, bits)
    large = (1024 + (bits & 0x3FF)) * np.where(bits & 0x8000, -64, 64)
    return np.where(bits & 0x7C00 == 0x7C00, large, numbers).astype(np.float32)


def _bits_of(context: Any, number: Any) -> Any:
    """The 64 bits of a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


def _of_bits(context: Any, bits: Any) -> Any:
    """The number of 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


def _pattern_of(context: Any, number: Any) -> Any:
    """The bits of an fp16 number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


bits_of: Any = intrinsic(_bits_of)
of_bits: Any = intrinsic(_of_bits)
pattern_of: Any = intrinsic(_pattern_of)

_DROPPED = 52 - 10
"""Bits of a double's fraction that fp16 has not."""


def round_half_away(y: Any) -> Any:
    """The nearest fp16 number, ties away from zero: half a step is added, the rest cut off."""
    magnitude = abs(y)
    if magnitude >= LARGEST + 16:
        return np.float32(np.copysign(np.inf, y))
    if magnitude < 2.0**-14:
        steps = magnitude * 2.0**24
        whole = np.floor(steps)
        nearest = (whole + (steps - whole >= 0.5)) * 2.0**-24
    else:
        bits = bits_of(magnitude) + (1 << (_DROPPED - 1))
        nearest = of_bits((bits >> _DROPPED) << _DROPPED)
    return np.float32(np.copysign(nearest, y)) + np.float32(0)


_vectorize: Any = numba.vectorize
_r16: Any = cached(
    lambda cache: _vectorize(["float32(float64)"], cache=cache)(round_half_away)
).ufunc


def r16(y: Array | float) -> FloatArray:
    """The fp16 number nearest to each double, as float32.

    Ties go away from zero (2049 becomes 2050), subnormals stay, -0 becomes +0, and what rounds to
    more than 65504 becomes infinite. Recorded: every output of a sum or of an element-wise
    operation.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(_r16(y))
