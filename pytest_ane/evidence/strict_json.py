"""JSON text of evidence: strict, limited in size and depth, laid out so that diffs are short."""

from __future__ import annotations

import json
import re
from typing import Any

from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.mlprogram.strict_json import parse_json

MOST_BYTES = 16 << 20
_DEEPEST = 32
_MOST = 2**64
_WIDTH = 180
_NUMBERS = ("NaN", "Infinity", "-Infinity")
_OBEYED = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls but tab and newline, changes of direction, halves of characters."""
_FREE = ("text", "expected_text")
"""What a model said is shown quoted, whatever it holds."""


def parse(data: bytes) -> Any:
    """The value in a file's bytes.

    Raises:
        EvidenceError: too large, nested too deeply, or no strict JSON.
    """
    if len(data) > MOST_BYTES:
        raise EvidenceError(f"has {len(data):,} bytes, more than any evidence should")
    try:
        value = parse_json(data.decode())
    except UnicodeDecodeError as error:
        raise EvidenceError(f"byte {error.start} is no UTF-8 text") from None
    except ValueError as error:
        raise EvidenceError(str(error)) from None
    _check(value)
    return value


def pretty(value: Any, indent: int = 0) -> str:
    """Strict JSON with sorted keys; what fits a line, or is a list of numbers, takes one line."""
    line = json.dumps(value, sort_keys=True, allow_nan=False)
    if indent + len(line) <= _WIDTH or not isinstance(value, dict | list) or _is_row(value):
        return line
    pad = " " * (indent + 1)
    if isinstance(value, list):
        parts = [pretty(one, indent + 1) for one in value]
        opening, closing = "[", "]"
    else:
        parts = [f"{json.dumps(k)}: {pretty(value[k], indent + 1)}" for k in sorted(value)]
        opening, closing = "{", "}"
    body = ",\n".join(pad + part for part in parts)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, int | float) or (isinstance(one, str) and one in _NUMBERS) for one in value
    )


def _check(top: Any) -> None:
    """Depth, texts and whole numbers of everything in a value; not recursive."""
    waiting: list[tuple[str, Any, int]] = [("", top, 0)]
    while waiting:
        key, one, depth = waiting.pop()
        if depth >= _DEEPEST:
            raise EvidenceError(f"the JSON is nested more than {_DEEPEST} deep")
        if isinstance(one, dict):
            for name in one:
                _check_plain("a name", name)
            waiting += [(name, inner, depth + 1) for name, inner in one.items()]
        elif isinstance(one, list):
            kinds = set(map(type, one))
            if kinds == {int}:
                _check_plain(key, max(one, key=abs))
            elif kinds != {float}:  # Most of a file is lists of numbers.
                waiting += [(key, inner, depth + 1) for inner in one]
        else:
            _check_plain(key, one)


def _check_plain(key: str, value: Any) -> None:
    if isinstance(value, str):
        if key not in _FREE and _OBEYED.search(value):
            raise EvidenceError(f"{key or 'a text'} holds characters that a terminal would obey")
    elif isinstance(value, int) and abs(value) > _MOST:
        raise EvidenceError(f"{key} has a number of {len(str(abs(value)))} digits")
