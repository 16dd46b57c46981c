"""Constants in the text: literals have no type of their own, they are read by the one before."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    ValueType,
)
from pytest_ane.mlprogram.values import NARROW, NUMPY, elements


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
    """The data of a `Value` of type `kind`.

    Raises:
        ProgramError: the literal is not one of that type, or holds numbers it cannot hold.
    """
    if isinstance(kind, TensorType):
        if isinstance(literal, Blob):
            return literal
        leaves = _leaves(literal, kind, where)
        return (_texts if kind.dtype is DType.STRING else _array)(leaves, kind, where)
    if isinstance(kind, ListType):
        items = _items(literal)
        if items is not None and kind.length in (None, len(items)):
            return tuple(_member(i, kind.element, where) for i in items)
    size = len(literal) if isinstance(literal, tuple) else None
    if isinstance(kind, TupleType) and size == len(kind.elements):
        fields = zip(literal, kind.elements, strict=True)
        return tuple(_member(i, k, where) for i, k in fields)
    if isinstance(kind, DictionaryType) and isinstance(literal, Pairs):
        return tuple(
            (_member(k, kind.key, where), _member(v, kind.value, where)) for k, v in literal
        )
    raise ProgramError(f"{where}: a constant of type {kind} holds no value of that type.")


def _member(literal: Literal, kind: ValueType, where: str) -> Any:
    """What lies in a list, a tuple or a dictionary: never a blob, which nobody would load."""
    if isinstance(literal, Blob):
        raise ProgramError(f"{where}: a part of a constant lies in a weights file.")
    return read_literal(literal, kind, where)


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


def _texts(leaves: list[Any], kind: TensorType, where: str) -> str | tuple[str, ...]:
    if not all(isinstance(leaf, Text) for leaf in leaves):
        raise _mismatch(kind, where)
    texts = tuple(str(leaf) for leaf in leaves)
    return texts if kind.shape else texts[0]


def _array(leaves: list[Any], kind: TensorType, where: str) -> Array:
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
        pieces = [_numbers(piece, kind.dtype) for piece in _pieces(",".join(texts))]
    except (ValueError, OverflowError, KeyError):
        raise ProgramError(
            f"{where}: a constant {kind} holds what is no number of its type."
        ) from None
    flat: Array = np.concatenate(pieces)
    return flat.reshape(shape)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find(",", start + _PIECE)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _numpy(dtype: DType) -> Any:
    return np.float32 if dtype is DType.BF16 else NUMPY[dtype]


def _numbers(text: str, dtype: DType) -> Array:
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
    if dtype is DType.BF16:
        # To the nearest, ties to even: bfloat16 is the upper half of float32.
        word = array.view(np.uint32).astype(np.uint64)
        word = word + 0x7FFF + (word >> 16 & 1)
        rounded = (word & 0xFFFF0000).astype(np.uint32).view(np.float32)
        array = np.where(np.isnan(array), array, rounded)
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
    r"""A text without its quotes, C's escapes (`\n`, `\"`, `\x41`, `\101`, `\u00e9`) resolved.

    Raises:
        ValueError: an escape that C does not have.
    """
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
