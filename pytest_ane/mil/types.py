"""Protobuf value types to records."""

from __future__ import annotations

import math
from typing import Any

from pytest_ane.mil import proto
from pytest_ane.mil.faults import Fault
from pytest_ane.mil.records import (
    DictionaryType,
    Dim,
    DType,
    ListType,
    StateType,
    TensorType,
    TupleType,
    ValueType,
)

MOST_ELEMENTS = 1 << 58
"""More elements than this overflow a 64-bit byte count, whatever the element type."""

_SHORT = {"FLOAT": "fp", "BFLOAT": "bf"}


def value_type(message: Any) -> ValueType:
    """The record of a `ValueType` message; Fault for what the executor could not hold."""
    kind = message.WhichOneof("type")
    if kind == "tensorType":
        return tensor_type(message.tensorType)
    if kind == "stateType":
        wrapped = value_type(message.stateType.wrappedType)
        if not isinstance(wrapped, TensorType):
            raise Fault("a state wraps something other than a tensor")
        return StateType(wrapped)
    if kind == "listType":
        return ListType(value_type(message.listType.type), _dim(message.listType.length))
    if kind == "tupleType":
        return TupleType(tuple(value_type(t) for t in message.tupleType.types))
    if kind == "dictionaryType":
        pair = message.dictionaryType
        return DictionaryType(value_type(pair.keyType), value_type(pair.valueType))
    raise Fault("a value has no type")


def tensor_type(message: Any) -> TensorType:
    """The record of a `TensorType` message."""
    shape = tuple(_dim(d) for d in message.dimensions)
    if message.rank != len(shape):
        raise Fault(f"the type says rank {message.rank} and lists {len(shape)} dimensions")
    if math.prod(extent for extent in shape if extent) > MOST_ELEMENTS:
        raise Fault(f"the shape {list(shape)} has more elements than any memory holds")
    return TensorType(_dtype(message.dataType), shape)


def _dtype(number: int) -> DType:
    name = proto.data_type_name(number)
    word = name.rstrip("0123456789")
    try:
        return DType(_SHORT.get(word, word.lower()) + name[len(word) :])
    except ValueError:
        shown = name.lower() or f"number {number}"
        raise Fault(f"the element type {shown} is not supported") from None


def _dim(message: Any) -> Dim:
    kind = message.WhichOneof("dimension")
    if kind == "constant":
        return int(message.constant.size)
    if message.unknown.variadic:
        raise Fault("a variadic dimension is not supported")
    return None
