"""What is wrong in a manifest, as sentences: file, line, table, key, the value, and the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from pytest_ane.manifest.base import KeyPath, Record, Table, loads
from pytest_ane.mlprogram.text import printable

# Merges model and shard tables, and tracks which table set each key.


@dataclass(frozen=True)
class Layers:
    """Tables of the file with the paths they stand at, the lowest first."""

    stack: tuple[tuple[KeyPath, Table], ...]

    def over(self, path: KeyPath, table: Table) -> Layers:
        """These layers with one more on top."""
        return Layers((*self.stack, (path, table)))

    def merged(self) -> Table:
        """One table: nearer keys win, lists replace, as does another `method` or `kind`."""
        return reduce(_laid_over, (table for _, table in self.stack), {})

    def origin(self, path: KeyPath) -> KeyPath:
        """Where in the file a key of the merged table was written.

        A key that no layer has belongs to the nearest layer that has the longest part of it.
        """
        best = max(reversed(self.stack), key=lambda layer: depth(layer[1], path))
        return (*best[0], *path)


def depth(table: Any, path: Sequence[str | int]) -> int:
    """How many parts of a path lead somewhere in a table."""
    for count, part in enumerate(path):
        if not _leads(table, part):
            return count
        table = table[part]
    return len(path)


def written(table: Any, location: Sequence[str | int]) -> KeyPath:
    """A pydantic location without the parts that are no keys, such as branches of a union."""
    path: list[str | int] = []
    for part in location:
        if _leads(table, part):
            path.append(part)
            table = table[part]
    return tuple(path)


def without(table: Any, keys: Sequence[str]) -> Any:
    """A table without some of its keys; anything else as it is."""
    if not isinstance(table, dict):
        return table
    return {key: value for key, value in table.items() if key not in keys}


def only(table: Any, keys: Sequence[str]) -> Table:
    """Some keys of a table; nothing of anything else."""
    if not isinstance(table, dict):
        return {}
    return {key: value for key, value in table.items() if key in keys}


def _laid_over(below: Table, above: Mapping[str, Any]) -> Table:
    result = {**below, **above}
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            another = any(k in value and value[k] != old.get(k) for k in ("method", "kind"))
            result[key] = value if another else _laid_over(old, value)
    return result


def _leads(table: Any, part: str | int) -> bool:
    if isinstance(table, dict):
        return part in table
    return isinstance(table, list) and isinstance(part, int) and part < len(table)


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 60


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a key's path (of a missing key, its table's), and the sentence."""

    path: KeyPath
    text: str


def at_value(path: KeyPath, value: Any, message: str) -> Problem:
    """`[models.m.compression] nbits = 5: must be ...`; for a table `[models.m.source] ...`."""
    if isinstance(value, dict):
        return at_table(path, message)
    table, key = path[:-1], _quoted(str(path[-1]))
    if isinstance(path[-1], int):
        table, key = path[:-2], f"{_quoted(str(path[-2]))}[{path[-1]}]"
    return Problem(path, f"{_header(table)}{key} = {toml_value(value)}: {message}")


def at_key(path: KeyPath, message: str) -> Problem:
    """`[models.m.policy] unknown key 'min-cosin': ...`, `message` naming the key itself."""
    return Problem(path, f"{_header(path[:-1])}{message}")


def at_table(path: KeyPath, message: str) -> Problem:
    """A problem of a whole table: `[models.m] ...`."""
    return Problem(path, f"{_header(path)}{message}")


def report(file: Path, text: str, problems: Iterable[Problem]) -> str:
    """All problems, each once and on a line of its own, in the file's order."""
    lines = key_lines(text)
    sentences = {problem.text: line_of(lines, problem.path) for problem in problems}
    name = label(file)
    return "\n".join(
        printable(f"{name}{f':{line}' if line else ''}: {text}{'' if text.endswith('?') else '.'}")
        for text, line in sorted(sentences.items(), key=lambda item: item[1] or 0)
    )


def label(file: Path) -> str:
    """A file as people call it: relative to where they are, if it lies below."""
    path, here = file.absolute(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(file)


def toml_value(value: Any) -> str:
    """A value as TOML writes it, shortened."""
    text = toml_text(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def dotted(path: KeyPath) -> str:
    """A table's name as a header writes it: `models.m.shard."head.0"`."""
    return ".".join(_quoted(part) for part in path if isinstance(part, str))


def toml_text(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_quoted(key)} = {toml_text(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}"
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


_SAYS = {
    **dict.fromkeys(("dict_type", "model_attributes_type", "model_type"), "must be a table"),
    **dict.fromkeys(("string_too_short", "too_short"), "must not be empty"),
    "tuple_type": "must be a list",
}
"""What pydantic says in words of Python."""


def problem(error: ErrorDetails, record: type[Record], layers: Layers) -> Problem:
    """One pydantic error of a record that was validated from merged layers."""
    table, kind, context = layers.merged(), error["type"], error.get("ctx", {})
    path = (*written(table, error["loc"]), *context.get("path", ()))
    if kind == "missing":
        return at_table(layers.origin(path), f"{str(error['loc'][-1])!r} is missing; add it")
    if kind == "union_tag_not_found":
        choices = "'palettize', 'linear', 'prune' or 'none'"
        return at_table(layers.origin(path), f"'method' is missing; add one of {choices}")
    if kind == "extra_forbidden":
        return at_key(layers.origin(path), unknown(str(path[-1]), record))
    if kind == "union_tag_invalid":
        path = (*path, "method")
    value = reduce(getitem, path, table) if depth(table, path) == len(path) else None
    return at_value(layers.origin(path), value, said(error))


def said(error: ErrorDetails) -> str:
    """What a value must be, as the end of a sentence."""
    context = error.get("ctx", {})
    if "error" in context:  # A `ValueError` of ours.
        return str(context["error"])
    if "expected_tags" in context:
        return f"must be one of {context['expected_tags']}"
    return _SAYS.get(error["type"], error["msg"].replace("Input should", "must"))


def unknown(key: str, record: type[Record]) -> str:
    """That a key is none; the most similar one of a record and all tables in it."""
    schema = record.model_json_schema()
    tables = [schema, *schema.get("$defs", {}).values()]
    keys = {key for table in tables for key in table.get("properties", ())}
    if key in keys:
        return f"unknown key {key!r}: it belongs in another table"
    if close := get_close_matches(key, sorted(keys), n=1):
        return f"unknown key {key!r}: did you mean {close[0]!r}?"
    return f"unknown key {key!r}: take it out"


Lines = dict[KeyPath, int]


def key_lines(text: str) -> Lines:
    """Line (from 1) of the tables and keys of a valid TOML text, by path.

    Arrays of tables count their elements: `("models", "m", "prompts", 0, "text")`. What stands
    inside a value is not looked for, and a table that only its children imply has the line of the
    first of them.
    """
    lines: Lines = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            table = _path(line, counts) or table
        key, equals, _ = line.partition("=")
        path = (*table, *(_path(f"{key}= 0", {}) if equals else ()))
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def line_of(lines: Lines, path: KeyPath) -> int | None:
    """The line of a path, or of the nearest table around it; `None` where there is none."""
    prefixes = (path[:length] for length in range(len(path), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def _path(statement: str, counts: dict[KeyPath, int]) -> KeyPath:
    """The path of `[a.b]`, `[[a.b]]` or `a.b = 0`, each array of tables followed by its index.

    Empty where the line is part of a value.
    """
    path: KeyPath = ()
    try:
        value: Any = loads(statement)
    except ValueError:
        return path
    while value:
        if path in counts:
            path = (*path, counts[path])
        ((key, value),) = value.items()
        path = (*path, key)
        if value == [{}]:
            counts[path] = counts.get(path, -1) + 1
            return (*path, counts[path])
    return path
