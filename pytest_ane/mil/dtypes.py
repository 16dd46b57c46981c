"""Element types as stored and as numpy holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mil.records import DType

_CARRIER: dict[DType, Any] = {
    DType.FP16: np.float16,
    DType.FP32: np.float32,
    DType.FP64: np.float64,
    DType.BF16: np.float32,
    DType.INT4: np.int8,
    DType.INT8: np.int8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.UINT1: np.uint8,
    DType.UINT2: np.uint8,
    DType.UINT3: np.uint8,
    DType.UINT4: np.uint8,
    DType.UINT6: np.uint8,
    DType.UINT8: np.uint8,
    DType.UINT16: np.uint16,
    DType.UINT32: np.uint32,
    DType.UINT64: np.uint64,
    DType.BOOL: np.bool_,
    DType.STRING: np.object_,
}

_NARROW = {
    DType.BF16: 16,
    DType.INT4: 4,
    DType.UINT1: 1,
    DType.UINT2: 2,
    DType.UINT3: 3,
    DType.UINT4: 4,
    DType.UINT6: 6,
}


def carrier(dtype: DType) -> np.dtype[Any]:
    """The narrowest numpy type that holds every value of `dtype`; bf16 is held in float32."""
    return np.dtype(_CARRIER[dtype])


def bits(dtype: DType) -> int:
    """Bits one element takes in a file: 6 for `uint6`, 16 for `fp16`."""
    return _NARROW.get(dtype) or 8 * carrier(dtype).itemsize


def is_packed(dtype: DType) -> bool:
    """Whether several elements share a byte."""
    return bits(dtype) < 8
