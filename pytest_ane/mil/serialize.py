"""A protobuf message in its one form, whichever protobuf writes it.

Its own deterministic serialization sorts maps, but not alike in C and in Python, and promises
nothing between versions ("Proto Serialization Is Not Canonical",
protobuf.dev/programming-guides/serialization-not-canonical).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MASK, _MORE = 0x7F, 0x80
_LENGTH_DELIMITED = 2
_KEY, _VALUE = 1, 2
"""The fields of a map's entry (protobuf.dev/programming-guides/encoding/#maps)."""


def canonical_bytes(message: Any) -> bytes:
    """A message's fields in the order of their numbers, its maps in the order of their keys.

    Texts are ordered by code point. Unknown fields are left out.

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
            yield _alone(type(message), field.name, value, repeated=field.is_repeated)


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


def _alone(kind: Any, name: str, value: Any, *, repeated: bool = False) -> bytes:
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
