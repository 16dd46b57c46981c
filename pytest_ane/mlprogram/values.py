"""Constants: immediate values into arrays, blob references into records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import (
    Blob,
    DictionaryType,
    DType,
    ListType,
    TensorType,
    TupleType,
    Value,
    ValueType,
)

# MIL.proto's DataType by name.
DTYPES = {
    "BOOL": DType.BOOL, "STRING": DType.STRING, "FLOAT16": DType.FP16, "FLOAT32": DType.FP32,
    "FLOAT64": DType.FP64, "BFLOAT16": DType.BF16, "INT4": DType.INT4, "INT8": DType.INT8,
    "INT16": DType.INT16, "INT32": DType.INT32, "INT64": DType.INT64, "UINT1": DType.UINT1,
    "UINT2": DType.UINT2, "UINT3": DType.UINT3, "UINT4": DType.UINT4, "UINT6": DType.UINT6,
    "UINT8": DType.UINT8, "UINT16": DType.UINT16, "UINT32": DType.UINT32, "UINT64": DType.UINT64,
}  # fmt: skip

# Types narrower than a byte are stored packed, and unpacked into these.
NUMPY: dict[DType, Any] = {
    DType.FP16: np.float16, DType.FP32: np.float32, DType.FP64: np.float64, DType.INT4: np.int8,
    DType.INT8: np.int8, DType.INT16: np.int16, DType.INT32: np.int32, DType.INT64: np.int64,
    DType.UINT1: np.uint8, DType.UINT2: np.uint8, DType.UINT3: np.uint8, DType.UINT4: np.uint8,
    DType.UINT6: np.uint8, DType.UINT8: np.uint8, DType.UINT16: np.uint16, DType.BOOL: np.bool_,
    DType.UINT32: np.uint32, DType.UINT64: np.uint64,
}  # fmt: skip

_BITS = {DType.INT4: 4, DType.UINT1: 1, DType.UINT2: 2, DType.UINT3: 3, DType.UINT4: 4,
         DType.UINT6: 6, DType.BF16: 16}  # fmt: skip


NARROW = {DType.INT4: (-8, 7), DType.UINT1: (0, 1), DType.UINT2: (0, 3), DType.UINT3: (0, 7),
          DType.UINT4: (0, 15), DType.UINT6: (0, 63)}  # fmt: skip
"""The least and the greatest number of the types that lie in wider ones."""

_MOST_ELEMENTS = 1 << 48
_MOST_DIMENSIONS = 32


def tensor_type(dtype: DType, shape: tuple[int | None, ...], where: str) -> TensorType:
    """A tensor's type.

    Raises:
        ProgramError: a shape of more than 2^48 elements or 32 dimensions.
    """
    if len(shape) > _MOST_DIMENSIONS:
        raise ProgramError(f"{where}: a shape has {len(shape)} dimensions, more than any tensor.")
    if math.prod(d or 1 for d in shape) > _MOST_ELEMENTS:
        raise ProgramError(f"{where}: shape {shape} has more elements than fit anywhere.")
    return TensorType(dtype, shape)


def bits(dtype: DType) -> int:
    """Bits of one stored element: 4 for `int4`, 16 for `fp16`."""
    return _BITS.get(dtype) or int(np.dtype(NUMPY[dtype]).itemsize * 8)


def elements(kind: TensorType, where: str) -> int:
    """Number of elements of a constant's type; its shape must be known."""
    if any(d is None for d in kind.shape):
        raise ProgramError(f"{where}: a constant has the open shape {kind}.")
    return math.prod(int(d or 0) for d in kind.shape)


def read_value(message: Any, kind: ValueType, where: str) -> Value:
    """A constant from its message.

    Raises:
        ProgramError: the number of elements does not fit the type.
    """
    if message.WhichOneof("value") == "blobFileValue":
        blob = message.blobFileValue
        if not isinstance(kind, TensorType):
            raise ProgramError(f"{where}: a constant of type {kind} lies in a weights file.")
        return Value(kind, Blob(blob.fileName, int(blob.offset)))
    immediate = message.immediateValue
    which = immediate.WhichOneof("value")
    if which == "tensor" and isinstance(kind, TensorType):
        return Value(kind, _tensor(immediate.tensor, kind, where))
    if which == "list" and isinstance(kind, ListType):
        items = immediate.list.values
        return Value(kind, tuple(_member(m, kind.element, where) for m in items))
    if which == "tuple" and isinstance(kind, TupleType):
        members = immediate.tuple.values
        if len(members) == len(kind.elements):
            fields = zip(members, kind.elements, strict=True)
            return Value(kind, tuple(_member(m, k, where) for m, k in fields))
    if which == "dictionary" and isinstance(kind, DictionaryType):
        pairs = (
            (_member(p.key, kind.key, where), _member(p.value, kind.value, where))
            for p in immediate.dictionary.values
        )
        return Value(kind, tuple(pairs))
    raise ProgramError(f"{where}: a constant of type {kind} holds no value of that type.")


def _member(message: Any, kind: ValueType, where: str) -> Any:
    """What lies in a list, a tuple or a dictionary: never a blob, which nobody would load."""
    data = read_value(message, kind, where).data
    if isinstance(data, Blob):
        raise ProgramError(f"{where}: a part of a constant lies in a weights file.")
    return data


def _tensor(tensor: Any, kind: TensorType, where: str) -> Any:
    which = tensor.WhichOneof("value")
    count = elements(kind, where)
    if which is None:
        values: Any = b"" if kind.dtype is not DType.STRING else []
    else:
        field = getattr(tensor, which)
        values = field.values
    if (kind.dtype is DType.STRING) is not (which == "strings") and which is not None:
        raise ProgramError(f"{where}: a constant {kind} is stored as {which}.")
    if kind.dtype is DType.STRING:
        return _strings(values, kind, where)
    if isinstance(values, bytes):
        size = -(-count * bits(kind.dtype) // 8)
        if len(values) > size:
            raise ProgramError(f"{where}: a constant {kind} holds {len(values)} bytes, not {size}.")
        array = unpack(np.frombuffer(values, np.uint8), kind.dtype, count, where)
    else:
        array = _numbers(values, kind, where)
    if array.size != count:
        raise ProgramError(f"{where}: a constant {kind} holds {array.size} elements, not {count}.")
    return array.reshape([int(d or 0) for d in kind.shape])


def _numbers(values: Any, kind: TensorType, where: str) -> Any:
    """Numbers of a repeated field; those that the type cannot hold are refused."""
    if kind.dtype not in NUMPY:
        raise ProgramError(f"{where}: a constant {kind} is stored as numbers, not as bytes.")
    wide = np.array(values)
    with np.errstate(over="ignore", invalid="ignore"):
        array = wide.astype(NUMPY[kind.dtype])
    if not _holds(kind.dtype, wide, array):
        raise ProgramError(f"{where}: a constant {kind} holds numbers beyond its range.")
    return array


def _holds(dtype: DType, wide: Any, array: Any) -> bool:
    """Whether numbers came through a cast: floats but for rounding, all others as they were."""
    if wide.dtype.kind == "f" and array.dtype.kind == "f":
        return bool(np.array_equal(np.isfinite(wide), np.isfinite(array)))
    low, high = NARROW.get(dtype, (-math.inf, math.inf))
    return bool(np.array_equal(wide, array) and ((low <= array) & (array <= high)).all())


def _strings(values: Any, kind: TensorType, where: str) -> Any:
    if not kind.shape:
        if len(values) != 1:
            raise ProgramError(f"{where}: a text constant holds {len(values)} texts.")
        return str(values[0])
    if len(values) != (count := elements(kind, where)):
        raise ProgramError(f"{where}: a constant {kind} holds {len(values)} texts, not {count}.")
    return tuple(str(v) for v in values)


def unpack(data: Any, dtype: DType, count: int, where: str) -> Any:
    """`count` elements from little-endian bytes; narrow types are packed, lowest bits first.

    Raises:
        ProgramError: there are too few bytes.
    """
    width = bits(dtype)
    if data.size * 8 < count * width:
        raise ProgramError(f"{where}: {data.size} bytes are too few for {count} of {dtype}.")
    if dtype is DType.BF16:
        wide = data[: 2 * count].view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    if dtype is DType.BOOL:
        return data[:count] != 0
    if width >= 8:
        return data[: count * width // 8].view(NUMPY[dtype])
    narrow = _narrow(data, width)[:count]
    if dtype is DType.INT4:
        narrow = ((narrow ^ 8).astype(np.int8) - 8).astype(np.int8)
    return narrow


def _narrow(data: Any, width: int) -> Any:
    """Elements of 1, 2, 3, 4 or 6 bits as uint8, all of them; whole groups of bytes at a time."""
    if width in (1, 2, 4):
        shifts = np.arange(0, 8, width, dtype=np.uint8)
        return ((data[:, None] >> shifts) & ((1 << width) - 1)).reshape(-1)
    # 3 and 6 bits: three bytes hold eight or four elements.
    padded = np.zeros((len(data) + 2) // 3 * 3, np.uint32)
    padded[: len(data)] = data
    word = padded[0::3] | padded[1::3] << 8 | padded[2::3] << 16
    out = np.empty((len(word), 24 // width), np.uint8)
    for i in range(24 // width):
        out[:, i] = (word >> (i * width)) & ((1 << width) - 1)
    return out.reshape(-1)
