"""Constants into protobuf messages, in the fields in which coremltools 9.0 puts them."""

from __future__ import annotations

from typing import Any

from pytest_ane.mil.proto import mil
from pytest_ane.mil.records import DType
from pytest_ane.mil.values import DTYPES

_PROTO = {dtype: name for name, dtype in DTYPES.items()}


def set_type(message: Any, dtype: DType, shape: tuple[int, ...]) -> None:
    """Make a `ValueType` that of a tensor."""
    message.Clear()
    tensor = message.tensorType
    tensor.dataType, tensor.rank = mil().DataType.Value(_PROTO[dtype]), len(shape)
    for extent in shape:
        tensor.dimensions.add().constant.size = extent


def set_blob(message: Any, dtype: DType, shape: tuple[int, ...], file: str, offset: int) -> None:
    """Make a `Value` one that lies in a weights file."""
    set_type(message.type, dtype, shape)
    message.blobFileValue.fileName, message.blobFileValue.offset = file, offset


def set_bytes(message: Any, dtype: DType, shape: tuple[int, ...], data: bytes) -> None:
    """Make a `Value` one that lies in the program, of a type that is kept as bytes."""
    set_type(message.type, dtype, shape)
    message.immediateValue.tensor.bytes.values = data


def set_name(message: Any, name: str) -> None:
    """Make a `Value` a text."""
    set_type(message.type, DType.STRING, ())
    del message.immediateValue.tensor.strings.values[:]
    message.immediateValue.tensor.strings.values.append(name)
