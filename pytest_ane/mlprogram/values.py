"""Constants: immediate values into arrays, blob references into records; literals of the text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.mlprogram.arrays import Array
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

DTYPES = {d.name.replace("FP", "FLOAT").replace("BF", "BFLOAT"): d for d in DType}
"""By the names of MIL.proto's DataType, which has `FLOAT16` and `BFLOAT16` for FP16 and BF16."""

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
    """A tensor's type."""
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
    """A constant from its message."""
    if message.WhichOneof("value") == "blobFileValue":
        blob = message.blobFileValue
        if not isinstance(kind, TensorType):
            raise ProgramError(f"{where}: a constant of type {kind} lies in a weights file.")
        return Value(kind, Blob(blob.fileName, int(blob.offset)))
    immediate = message.immediateValue
    which = immediate.WhichOneof("value")
    if which == "tensor" and isinstance(kind, TensorType):
        return Value(kind, _tensor(immediate.tensor, kind, where))
    whole = {"list": list, "tuple": tuple, "dictionary": Pairs}.get(which or "")
    if whole is None:
        raise _mistyped(kind, where)
    members = getattr(immediate, which).values
    parts = [(p.key, p.value) for p in members] if whole is Pairs else members
    read = lambda part, kind: read_value(part, kind, where).data  # noqa: E731
    return Value(kind, _compound(whole(parts), kind, where, read))


def _compound(
    parts: Any, kind: ValueType, where: str, read: Callable[[Any, ValueType], Any]
) -> tuple[Any, ...]:
    """The members of a list, a tuple or a dictionary: never a blob, which nobody would load."""

    def member(part: Any, kind: ValueType) -> Any:
        if isinstance(data := read(part, kind), Blob):
            raise ProgramError(f"{where}: a part of a constant lies in a weights file.")
        return data

    if isinstance(kind, ListType) and type(parts) is list:
        return tuple(member(part, kind.element) for part in parts)
    if isinstance(kind, TupleType) and type(parts) is tuple and len(parts) == len(kind.elements):
        return tuple(map(member, parts, kind.elements))
    if isinstance(kind, DictionaryType) and isinstance(parts, Pairs):
        return tuple((member(k, kind.key), member(v, kind.value)) for k, v in parts)
    raise _mistyped(kind, where)


def _mistyped(kind: ValueType, where: str) -> ProgramError:
    return ProgramError(f"{where}: a constant of type {kind} holds no value of that type.")


def _tensor(tensor: Any, kind: TensorType, where: str) -> Any:
    which, is_text = tensor.WhichOneof("value"), kind.dtype is DType.STRING
    count = elements(kind, where)
    if which is not None and is_text is not (which == "strings"):
        raise ProgramError(f"{where}: a constant {kind} is stored as {which}.")
    values: Any = getattr(tensor, which).values if which else [] if is_text else b""
    if is_text:
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
    if len(values) != (count := elements(kind, where)):
        raise ProgramError(f"{where}: a constant {kind} holds {len(values)} texts, not {count}.")
    return tuple(map(str, values)) if kind.shape else str(values[0])


def unpack(data: Any, dtype: DType, count: int, where: str) -> Any:
    """`count` elements from little-endian bytes; narrow types are packed, lowest bits first."""
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
    low, middle, high = np.pad(data, (0, -len(data) % 3)).astype(np.uint32).reshape(-1, 3).T
    word = low | middle << 8 | high << 16
    out = np.empty((len(word), 24 // width), np.uint8)
    for i in range(24 // width):
        out[:, i] = (word >> (i * width)) & ((1 << width) - 1)
    return out.reshape(-1)


class Text(str):
    """A text without its quotes, escapes resolved."""


class Number(str):
    """A number, as it is written."""


class Row(str):
    """Numbers in brackets, as they are written."""


class Pairs(list[Any]):
    """The entries of a dictionary, keys before values."""


# Beside these: a list for rows, a tuple for members, a `Blob`.
Literal: TypeAlias = Any

_PIECE = 1 << 20
"""Characters that become Python numbers at once; what they take is bounded so."""
_WORDS = {"true": True, "false": False}


def read_literal(literal: Literal, kind: ValueType, where: str) -> Any:
    """The data of a `Value` of type `kind`."""
    if isinstance(kind, TensorType):
        if isinstance(literal, Blob):
            return literal
        read = _literal_texts if kind.dtype is DType.STRING else _literal_array
        return read(_leaves(literal, kind, where), kind, where)
    if isinstance(kind, ListType):
        literal = _items(literal)
        if literal is not None and kind.length not in (None, len(literal)):
            raise _mistyped(kind, where)
    return _compound(literal, kind, where, lambda part, kind: read_literal(part, kind, where))


def _items(literal: Literal) -> list[Any] | None:
    if isinstance(literal, Row):
        inner = literal[1:-1].strip()
        return [Number(n) for n in inner.split(",")] if inner else []
    return literal if type(literal) is list else None


def _leaves(literal: Literal, kind: TensorType, where: str) -> list[Any]:
    """Scalars, texts or innermost rows in order, the nesting checked against the shape."""
    if not elements(kind, where) and _blank(literal):
        return []
    leaves = [literal]
    rank = len(kind.shape) - (kind.dtype is not DType.STRING)
    for extent in kind.shape[: max(rank, 0)]:
        inner: list[Any] = []
        for leaf in leaves:
            items = leaf if type(leaf) is list else _items(leaf) if _blank(leaf) else None
            if items is None or len(items) != extent:
                raise _mismatch(kind, where)
            inner += items
        leaves = inner
    return leaves


def _blank(literal: Literal) -> bool:
    return isinstance(literal, Row) and not literal[1:-1].strip()


def _literal_texts(leaves: list[Any], kind: TensorType, where: str) -> str | tuple[str, ...]:
    if not all(isinstance(leaf, Text) for leaf in leaves):
        raise _mismatch(kind, where)
    texts = tuple(str(leaf) for leaf in leaves)
    return texts if kind.shape else texts[0]


def _literal_array(leaves: list[Any], kind: TensorType, where: str) -> Array:
    shape = [int(d or 0) for d in kind.shape]
    if not all(isinstance(leaf, Row if shape else Number) for leaf in leaves):
        raise _mismatch(kind, where)
    extent = shape[-1] if shape else 1
    texts = [leaf[1:-1] if shape else str(leaf) for leaf in leaves]
    if any((text.count(",") + 1 if text.strip() else 0) != extent for text in texts):
        raise _mismatch(kind, where)
    if 0 in shape:
        return np.empty(shape, _numpy(kind.dtype))
    try:
        pieces = [_literal_numbers(piece, kind.dtype) for piece in _pieces(",".join(texts))]
    except (ValueError, OverflowError, KeyError):
        says = f"a constant {kind} holds what is no number of its type"
        raise ProgramError(f"{where}: {says}.") from None
    return np.concatenate(pieces).reshape(shape)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find(",", start + _PIECE)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _numpy(dtype: DType) -> Any:
    return np.float32 if dtype is DType.BF16 else NUMPY[dtype]


def _literal_numbers(text: str, dtype: DType) -> Array:
    if "_" in text:
        raise ValueError("Python's digit groups are no part of MIL")
    words = text.split(",")
    if dtype is DType.BOOL:
        return np.array([_WORDS[w.strip()] for w in words])
    if np.dtype(_numpy(dtype)).kind == "f":
        return _floats(words, dtype)
    numbers = [int(w) for w in words]
    info = np.iinfo(_numpy(dtype))
    low, high = NARROW.get(dtype) or (info.min, info.max)
    if min(numbers) < low or max(numbers) > high:
        raise ValueError("beyond the range of the type")
    return np.array(numbers, _numpy(dtype))


def _floats(words: list[str], dtype: DType) -> Array:
    wide = np.array([float.fromhex(w) if "x" in w else float(w) for w in words])
    # Python reads `1e999` as infinity.
    if any("inf" not in words[i].lower() for i in np.flatnonzero(np.isinf(wide))):
        raise ValueError("beyond the range of any type")
    with np.errstate(over="ignore"):
        array = wide.astype(_numpy(dtype))
    if np.isinf(array[np.isfinite(wide)]).any():
        raise ValueError("beyond the range of the type")
    return array


def _mismatch(kind: TensorType, where: str) -> ProgramError:
    return ProgramError(f"{where}: a constant {kind} holds a value of another type or shape.")


OPSETS = {"ios15": "CoreML5", "ios16": "CoreML6", "ios17": "CoreML7", "ios18": "CoreML8",
          "ios26": "CoreML9"}  # fmt: skip
"""The compiler's name of an opset, and the protobuf's, which records keep."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_@.]*", re.ASCII)
"""Names as the grammar has them."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
            '"': '"', "'": "'", "\\": "\\", "?": "?"}  # fmt: skip
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|([0-7]{1,3})|(.))", re.DOTALL)
_SURROGATES = range(0xD800, 0xE000)
_QUOTED = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r"}
_TO_QUOTE = re.compile(r'["\\\x00-\x1f\x7f]')


def unquote(quoted: str) -> str:
    r"""A text without its quotes, C's escapes (`\n`, `\"`, `\x41`, `\101`, `\u00e9`) resolved."""
    inner = quoted[1:-1]
    return _ESCAPE.sub(_resolve, inner) if "\\" in inner else inner


def quote(text: str) -> str:
    """A text in quotes; what is not printable ASCII's control stays UTF-8."""
    return f'"{_TO_QUOTE.sub(_escape, text)}"'


def _resolve(match: re.Match[str]) -> str:
    hexadecimal, unicode, octal, letter = match.groups()
    if letter is not None:
        if letter not in _ESCAPES:
            raise ValueError(f"{match.group()!r} is no escape")
        return _ESCAPES[letter]
    code = int(octal, 8) if octal else int(hexadecimal or unicode, 16)
    if code in _SURROGATES:
        raise ValueError(f"{match.group()!r} is no character")
    return chr(code)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    # Three octal digits: a hexadecimal escape would swallow digits that follow it in C.
    return _QUOTED.get(character) or f"\\{ord(character):03o}"
