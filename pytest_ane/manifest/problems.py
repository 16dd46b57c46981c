"""What is wrong in a manifest, as sentences: file, line, table, key, the value, and the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ane.manifest.base import KeyPath

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 60


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: the key it is about, from the top of the file; of a missing key, its table.
        text: the message from the table's name on, without the full stop.
    """

    path: KeyPath
    text: str


def at_value(path: KeyPath, value: Any, says: str) -> Problem:
    """`[models.m.compression] nbits = 5: must be ...`; for a table `[models.m.source] ...`."""
    if isinstance(value, dict):
        return at_table(path, says)
    table, key = path[:-1], _quoted(str(path[-1]))
    if isinstance(path[-1], int):
        table, key = path[:-2], f"{_quoted(str(path[-2]))}[{path[-1]}]"
    return Problem(path, f"{_header(table)}{key} = {shown(value)}: {says}")


def at_key(path: KeyPath, says: str) -> Problem:
    """`[models.m.policy] unknown key 'min-cosin': ...`, `says` naming the key itself."""
    return Problem(path, f"{_header(path[:-1])}{says}")


def at_table(path: KeyPath, says: str) -> Problem:
    """`[models.m] ...`."""
    return Problem(path, f"{_header(path)}{says}")


def report(file: Path, text: str, problems: Iterable[Problem]) -> str:
    """All problems, each once and on a line of its own, in the file's order."""
    from pytest_ane.manifest.locate import key_lines, line_of

    lines = key_lines(text)
    found = {problem.text: line_of(lines, problem.path) for problem in problems}
    name = label(file)
    return "\n".join(
        f"{name}{f':{line}' if line else ''}: {text}{'' if text.endswith('?') else '.'}"
        for text, line in sorted(found.items(), key=lambda item: item[1] or 0)
    )


def label(file: Path) -> str:
    """A file as people call it: relative to where they are, if it lies below."""
    path, here = file.absolute(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(file)


def shown(value: Any) -> str:
    """A value as TOML writes it, shortened."""
    text = _toml(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def dotted(path: KeyPath) -> str:
    """A table's name as a header writes it: `models.m.shard."head.0"`."""
    return ".".join(_quoted(part) for part in path if isinstance(part, str))


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(key)} = {_toml(v)}" for key, v in value.items()) + " }"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _header(path: KeyPath) -> str:
    if not path:
        return ""
    name = dotted(path)
    return f"[[{name}]] " if isinstance(path[-1], int) else f"[{name}] "


def _quoted(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
