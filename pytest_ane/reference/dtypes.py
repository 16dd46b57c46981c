"""The numeric policy, written once.

Values of type fp16 are carried as float32 arrays that hold only numbers fp16 can represent. An
operation computes in float32, and its result is rounded to fp16 where its type says fp16; beyond
65,504 that gives infinity, as fp16 would. Integers and booleans keep their types. Under
`precision="float32"` nothing is rounded: an upper bound on what better arithmetic could give.
`precision="float64"` carries all floating values as float64, for golden outputs.
Bit equality with the ANE is not claimed: its order of summation is not documented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_ane.mil.records import DType

Precision = Literal["as-typed", "float32", "float64"]

_CARRIED: dict[DType, Any] = {
    DType.FP16: np.float32, DType.FP32: np.float32, DType.FP64: np.float64, DType.BF16: np.float32,
    DType.INT8: np.int8, DType.INT16: np.int16, DType.INT32: np.int32, DType.INT64: np.int64,
    DType.UINT8: np.uint8, DType.UINT16: np.uint16, DType.UINT32: np.uint32, DType.BOOL: np.bool_,
    DType.UINT64: np.uint64, DType.INT4: np.int8, DType.UINT1: np.uint8, DType.UINT2: np.uint8,
    DType.UINT3: np.uint8, DType.UINT4: np.uint8, DType.UINT6: np.uint8,
}  # fmt: skip


_FLOATS = frozenset((DType.FP16, DType.FP32, DType.FP64, DType.BF16))

_WORTHWHILE = 2048
_EXPONENT, _SIGN = np.uint32(0x7F800000), np.uint32(0x80000000)
_SMALLEST, _LARGE = np.uint32(0x38800000), np.uint32(0x47000000)
"""Bits of 2^-14 and 2^15: from the latter on, values may overflow fp16."""
_TIMES_12288 = np.uint32((13 << 23) | (1 << 22))
"""Added to the bits of a power of two: times 2^13, and times 1.5 by the mantissa's first bit."""


def carried(dtype: DType, precision: Precision = "as-typed") -> Any:
    """The numpy type that values of a MIL type are carried in."""
    if precision == "float64" and dtype in _FLOATS:
        return np.float64
    return _CARRIED[dtype]


_kernels: Any = None
"""The compiled kernels, once they are loaded."""


def round_with(kernels: Any) -> None:
    """Round float32 arrays by compiled functions from here on: the same numbers, sooner."""
    global _kernels
    _kernels = kernels


def rounding(function: Any) -> Callable[[Any, Any], Any] | None:
    """A ufunc and `rounded` in one pass over fp16 operands; None for most functions."""
    name = {np.add: "add", np.multiply: "mul"}.get(function, "")

    def compute(x: Any, y: Any) -> Any:
        if _kernels is None or x.dtype.char != "f" or y.dtype.char != "f":
            return rounded(function(x, y))
        return getattr(_kernels, name)(x, y)

    return compute if name else None


def round_fp16(x: Any) -> npt.NDArray[np.float32]:
    """`rounded`, silently."""
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded(x)


def rounded(x: Any) -> npt.NDArray[np.float32]:
    """Nearest fp16 number (ties to even) of each value, as float32; overflow gives infinity.

    Large arrays take a way of their own, bit for bit the same and three times as fast: adding
    1.5 * 2^13 times a value's power of two leaves no bits below fp16's last, so that float32's own
    rounding does the work; subtracting it again is exact.
    """
    if _kernels is not None and type(x) is np.ndarray and x.dtype.char == "f":
        return np.asarray(_kernels.rounded(x))
    x = np.asarray(x)
    if x.dtype == np.float32 and x.size >= _WORTHWHILE:
        bits = x.view(np.uint32)
        power = bits & _EXPONENT
        if power.max() < _LARGE:
            # Below fp16's smallest normal number the quantum stays that of the subnormals.
            np.maximum(power, _SMALLEST, out=power)
            power += _TIMES_12288
            magic = power.view(np.float32)
            rounded: npt.NDArray[np.float32] = np.add(x, magic)
            rounded -= magic
            # Only the sign of zero can get lost on the way.
            np.bitwise_and(bits, _SIGN, out=power)
            np.bitwise_or(rounded.view(np.uint32), power, out=rounded.view(np.uint32))
            return rounded
    found: npt.NDArray[np.float32] = x.astype(np.float16).astype(np.float32)
    return found


def settle(x: Any, dtype: DType, precision: Precision, moves: bool) -> npt.NDArray[Any]:
    """An operation's result in the form its type is carried in, rounded where policy says so."""
    if dtype is DType.FP16 and precision == "as-typed" and not moves:
        return round_fp16(x)
    return np.asarray(x).astype(carried(dtype, precision), copy=False)
