"""Sentences about what is wrong in a manifest: file, line, table, key, value, and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from pytest_ane.manifest import compression, policy, records, tables
from pytest_ane.manifest.locate import Path as KeyPath
from pytest_ane.manifest.locate import key_lines

# Names that pydantic puts into a location for the branch of a union, not keys of the file.
_BRANCHES = {"palettize", "linear", "none", "str", "tuple[str, ...]", "function-before[size(), int]"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def sentence(
    file: Path, lines: Mapping[KeyPath, int], path: KeyPath, text: str, value: str = ""
) -> str:
    """`shards.toml:14: [models.m.compression] nbits = 5: must be ...`."""
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), 1)
    table, key = _split(path)
    where = f"[{table}] " if table else ""
    return f"{file}:{line}: {where}{key}{value}: {text}."


def of_error(
    file: Path, text: str, errors: Iterable[ErrorDetails], origin: Callable[[KeyPath], KeyPath]
) -> list[str]:
    """One sentence for each pydantic error, in the file's order; `origin` maps merged paths."""
    lines = key_lines(text)
    found = {}
    for error in errors:
        path = origin(tuple(part for part in error["loc"] if part not in _BRANCHES))
        message, value = _message(error, path)
        line = sentence(file, lines, path, message, value)
        found[line] = lines.get(path, 0)
    return sorted(found, key=lambda line: found[line])


def _message(error: ErrorDetails, path: KeyPath) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    value = f" = {_shown(error['input'])}" if not isinstance(error["input"], dict) else ""
    if kind == "extra_forbidden":
        close = get_close_matches(str(path[-1]), _KEYS, n=1)
        return "unknown key" + (f"; did you mean {close[0]!r}?" if close else ""), value
    if kind == "missing":
        return "this key is needed", ""
    if kind == "literal_error":
        return f"must be one of {context['expected']}".replace(" or ", ", "), value
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return "needs method = 'palettize', 'linear' or 'none'", ""
    if kind == "value_error":
        return str(context["error"]), value
    if kind == "string_pattern_mismatch":
        return f"must have the form {context['pattern']}", value
    text = error["msg"].replace("Input should be", "must be").replace("valid string", "text")
    return text[0].lower() + text[1:], value


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _split(path: KeyPath) -> tuple[str, str]:
    keys = [part for part in path if isinstance(part, str)]
    quoted = [key if _BARE.fullmatch(key) else f'"{key}"' for key in keys]
    return ".".join(quoted[:-1]), quoted[-1] if quoted else ""


def _all_keys() -> list[str]:
    keys: dict[str, None] = {}
    for module in (tables, policy, records, compression):
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, BaseModel) and item is not records.Shard:
                for name, field in item.model_fields.items():
                    keys[field.alias or name] = None
    return list(keys)


_KEYS = _all_keys()
