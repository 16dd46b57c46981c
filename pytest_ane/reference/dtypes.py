"""The numeric policy, written once.

Values of type fp16 are carried as float32 arrays that hold only numbers fp16 can represent. An
operation computes in float32, and its result is rounded to fp16 where its type says fp16; beyond
65,504 that gives infinity, as fp16 would. Integers and booleans keep their types. Under
`precision="float32"` nothing is rounded: an upper bound on what better arithmetic could give.
Bit equality with the ANE is not claimed: its order of summation is not documented.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_ane.mil.records import DType

Precision = Literal["as-typed", "float32"]

_CARRIED: dict[DType, Any] = {
    DType.FP16: np.float32, DType.FP32: np.float32, DType.FP64: np.float64, DType.BF16: np.float32,
    DType.INT8: np.int8, DType.INT16: np.int16, DType.INT32: np.int32, DType.INT64: np.int64,
    DType.UINT8: np.uint8, DType.UINT16: np.uint16, DType.UINT32: np.uint32, DType.BOOL: np.bool_,
    DType.UINT64: np.uint64, DType.INT4: np.int8, DType.UINT1: np.uint8, DType.UINT2: np.uint8,
    DType.UINT3: np.uint8, DType.UINT4: np.uint8, DType.UINT6: np.uint8,
}  # fmt: skip


def carried(dtype: DType) -> Any:
    """The numpy type that values of a MIL type are carried in."""
    return _CARRIED[dtype]


def round_fp16(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Nearest fp16 number (ties to even) of each value, as float32; overflow gives infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).astype(np.float32)


def settle(x: Any, dtype: DType, precision: Precision, moves: bool) -> npt.NDArray[Any]:
    """An operation's result in the form its type is carried in, rounded where policy says so."""
    array = np.asarray(x)
    if dtype is DType.FP16 and precision == "as-typed" and not moves:
        return round_fp16(array)
    return array.astype(_CARRIED[dtype], copy=False)
