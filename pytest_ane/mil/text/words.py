"""What the text writes in other words than the records: opsets, and texts in quotes."""

from __future__ import annotations

import re

# The compiler's name of an opset, and the protobuf's, which records keep.
_RECORDS = {"ios15": "CoreML5", "ios16": "CoreML6", "ios17": "CoreML7", "ios18": "CoreML8",
            "ios26": "CoreML9"}  # fmt: skip
_TEXTS = {record: text for text, record in _RECORDS.items()}

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_@.]*", re.ASCII)
"""Names as the grammar has them."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
            '"': '"', "'": "'", "\\": "\\", "?": "?"}  # fmt: skip
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|([0-7]{1,3})|(.))", re.DOTALL)
_SURROGATES = range(0xD800, 0xE000)
_QUOTED = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t", "\r": r"\r"}
_TO_QUOTE = re.compile(r'["\\\x00-\x1f\x7f]')


def to_record(opset: str) -> str:
    """`CoreML7` for `ios17`; what is not known stays as it is."""
    return _RECORDS.get(opset, opset)


def to_text(opset: str) -> str:
    """`ios17` for `CoreML7`; what is not known stays as it is."""
    return _TEXTS.get(opset, opset)


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
