"""Protobuf messages: coremltools' definitions without coremltools, 0.03 s instead of three.

`import coremltools` loads converters and torch. The generated modules in `coremltools/proto` need
protobuf alone, so they are loaded under the package's own name from a bare parent module, which is
taken away again: a later real `import coremltools` runs as if nothing had happened and finds the
same message classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import DType
from pytest_ane.mlprogram.values import DTYPES

_PARENT = "coremltools"


@cache
def definitions() -> Any:
    """The module `coremltools.proto.Model_pb2`; its `MIL__pb2` holds the program's messages.

    Raises:
        ProgramError: coremltools is not installed.
    """
    if _PARENT in sys.modules:
        return import_module(f"{_PARENT}.proto.Model_pb2")
    spec = find_spec(_PARENT)
    if spec is None or not spec.submodule_search_locations:
        raise ProgramError("coremltools is not installed; run: pip install coremltools")
    parent = ModuleType(_PARENT)
    parent.__path__ = list(spec.submodule_search_locations)
    sys.modules[_PARENT] = parent
    try:
        return import_module(f"{_PARENT}.proto.Model_pb2")
    finally:
        del sys.modules[_PARENT]


def mil() -> Any:
    """The module `coremltools.proto.MIL_pb2`, which holds the messages of programs."""
    definitions()
    return sys.modules[f"{_PARENT}.proto.MIL_pb2"]


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
    """Make a `Value` one that holds a text, such as an operation's `name`."""
    set_type(message.type, DType.STRING, ())
    del message.immediateValue.tensor.strings.values[:]
    message.immediateValue.tensor.strings.values.append(name)


_MASK, _MORE = 0x7F, 0x80
_LENGTH_DELIMITED = 2
_KEY, _VALUE = 1, 2
"""The fields of a map's entry (protobuf.dev/programming-guides/encoding/#maps)."""


def canonical_bytes(message: Any) -> bytes:
    """A message in one form, whichever protobuf wrote it.

    Its fields are in the order of their numbers, its maps in the order of their keys, texts by code
    point. Unknown fields are left out. protobuf's own deterministic serialization sorts maps, but
    not alike in C and in Python, and promises nothing between versions
    (protobuf.dev/programming-guides/serialization-not-canonical).

    Raises:
        TypeError: a map holds floating-point numbers, as those of no ML Program do.
    """
    return b"".join(_fields(message))


def _fields(message: Any) -> Iterator[bytes]:
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            for key in sorted(value):
                yield _framed(field.number, _entry(value, key, kind))
        elif kind is not None:
            for each in value if field.is_repeated else (value,):
                yield _framed(field.number, canonical_bytes(each))
        else:
            yield _plain_field(type(message), field.name, value, repeated=field.is_repeated)


def _entry(mapping: Any, key: str | int, kind: Any) -> bytes:
    """Key and value, both always; Core ML's maps have texts or plain integers as keys."""
    value = mapping[key]
    if kind.fields_by_number[_VALUE].message_type is not None:
        return _plain(_KEY, key) + _framed(_VALUE, canonical_bytes(value))
    return _plain(_KEY, key) + _plain(_VALUE, value)


def _plain(number: int, value: str | int) -> bytes:
    if isinstance(value, str):
        return _framed(number, value.encode())
    if not isinstance(value, int):
        raise TypeError(f"a map of {type(value).__name__}")
    return _varint(number << 3) + _varint(value % (1 << 64))


def _plain_field(kind: Any, name: str, value: Any, *, repeated: bool = False) -> bytes:
    """A field without messages in it, as protobuf writes a message of nothing else."""
    message = kind()
    if repeated:
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)
    written: bytes = message.SerializeToString()
    return written


def _framed(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > _MASK:
        data.append(value & _MASK | _MORE)
        value >>= 7
    return bytes((*data, value))
