"""What is wrong in a manifest, as sentences: file, line, table, key, the value, and the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic_core import ErrorDetails

from pytest_ane.manifest.base import KeyPath, Record, Table, loads, one_of
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


def value_at(table: Any, path: Sequence[str | int]) -> Any:
    """What a path leads to; `None` where it leads nowhere."""
    for part in path:
        if not _leads(table, part):
            return None
        table = table[part]
    return table


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
    result = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _replaces(value, old):
            result[key] = _laid_over(old, value)
        else:
            result[key] = value
    return result


def _replaces(above: Table, below: Table) -> bool:
    return any(key in above and above[key] != below.get(key) for key in ("method", "kind"))


def _leads(table: Any, part: str | int) -> bool:
    if isinstance(table, dict):
        return part in table
    return isinstance(table, list) and isinstance(part, int) and part < len(table)


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
        return (
            "{ " + ", ".join(f"{_quoted(key)} = {toml_text(v)}" for key, v in value.items()) + " }"
        )
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


_SAYS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "must be true or false",
    "dict_type": lambda _: "must be a table",
    "finite_number": lambda _: "must be a finite number",
    "float_type": lambda _: "must be a number",
    "greater_than": lambda c: f"must be more than {c['gt']:g}",
    "greater_than_equal": lambda c: f"must be at least {c['ge']:g}",
    "invalid-json-value": lambda _: "must be a number, text, list or table",
    "int_type": lambda _: "must be a whole number",
    "less_than": lambda c: f"must be less than {c['lt']:g}",
    "less_than_equal": lambda c: f"must be at most {c['le']:g}",
    "literal_error": lambda c: one_of(c["expected"]),
    "misplaced": lambda c: str(c["message"]),
    "model_attributes_type": lambda _: "must be a table",
    "model_type": lambda _: "must be a table",
    "multiple_of": lambda c: f"must be a multiple of {c['multiple_of']:g}",
    "path_type": lambda _: "must be a path in quotes",
    "string_too_short": lambda _: "must not be empty",
    "string_type": lambda _: "must be text in quotes",
    "too_short": lambda _: "must not be empty",
    "tuple_type": lambda _: "must be a list",
    "union_tag_invalid": lambda c: one_of(c["expected_tags"]),
    "value_error": lambda c: str(c["error"]),
}


def problem(error: ErrorDetails, record: type[Record], layers: Layers) -> Problem:
    """One pydantic error of a record that was validated from merged layers."""
    table, kind, context = layers.merged(), error["type"], error.get("ctx", {})
    path = (*written(table, error["loc"]), *context.get("path", ()))
    if kind == "missing":
        return at_table(layers.origin(path), f"{str(error['loc'][-1])!r} is missing; add it")
    if kind == "union_tag_not_found":
        choices = "'palettize', 'linear', 'prune' or 'none'"
        return at_table(layers.origin(path), f"'method' is missing; add one of {choices}")
    if kind == "union_tag_invalid":
        path = (*path, "method")
    if kind == "extra_forbidden":
        return _unknown(record, error["loc"], layers.origin(path), value_at(table, path))
    message = _SAYS[kind](context) if kind in _SAYS else error["msg"]
    return at_value(layers.origin(path), value_at(table, path), message)


def _unknown(
    record: type[Record], location: Sequence[str | int], path: KeyPath, value: Any
) -> Problem:
    key, kinds = str(path[-1]), _tables(record, location[:-1])
    keys, message = _fields(kinds), f"unknown key {key!r}"
    if close := get_close_matches(key, keys, n=1):
        return at_key(path, f"{message}: did you mean {close[0]!r}?")
    if isinstance(value, dict) and len(path) == 5 and path[2] == "shard":
        whole = dotted((*path[:3], f"{path[3]}.{key}"))
        return at_key(path, f"{message}: a shard id with a dot is written in quotes, [{whole}]")
    if homes := [home[:-1] for kind in kinds for home in _homes(kind) if home[-1] == key]:
        table = dotted((*path[:-1], *min(homes, key=len)))
        return at_key(path, f"{message}: it belongs in [{table}]")
    return at_key(path, f"{message}: the keys here are {', '.join(sorted(keys))}")


def _tables(record: type[Record], location: Sequence[str | int]) -> list[type[Record]]:
    """The records that may stand at a location; the name of a union's branch decides for one."""
    kinds = [record]
    for part in location:
        chosen = [kind for kind in kinds if part == _method(kind)]
        inner = [r for kind in kinds for r in _records(_annotation(kind, part))]
        kinds = chosen or inner or kinds
    return kinds


def _homes(record: type[Record], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a record and of the tables in it, as paths; lists and named tables apart."""
    for key in _fields([record]):
        yield (*above, key)
        annotation = _annotation(record, key)
        if get_origin(annotation) not in (tuple, dict):
            for inner in _records(annotation):
                yield from _homes(inner, (*above, key))


def _fields(kinds: Sequence[type[Record]]) -> list[str]:
    return list({key: None for kind in kinds for key in kind.by_key()})


def _method(kind: type[Record]) -> Any:
    field = kind.model_fields.get("method")
    return field.default if field else None


def _annotation(kind: type[Record], key: str | int) -> Any:
    field = kind.by_key().get(str(key))
    return field.annotation if field else None


def _records(annotation: Any) -> Iterator[type[Record]]:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        yield annotation
    for argument in get_args(annotation):
        yield from _records(argument)


Lines = dict[KeyPath, int]


def key_lines(text: str) -> Lines:
    """Line (from 1) of every table and key of a valid TOML text, by path.

    Arrays of tables and arrays count their elements: `("models", "m", "prompts", 0, "text")`.
    A table that only its children imply has the line of the first of them.

    The TOML parser of the standard library says no lines. It is given one statement after another:
    the fewest lines that are valid by themselves, which are a header or a key with its value.
    """
    lines: Lines = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement: list[str] = []
    grown: Table | None = None
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        statement.append(line)
        if (found := _parsed(statement)) is None:
            # What an array has so far stands on the lines so far.
            if grown := _parsed([*statement, "]"]):
                _note_pairs(lines, table, grown, number)
            continue
        if len(statement) == 1 and line.lstrip().startswith("["):
            table = _header_path(found, counts)
            _note(lines, table, number)
        else:
            _note_pairs(lines, table, found, number if grown else number - len(statement) + 1)
        statement, grown = [], None
    return lines


def line_of(lines: Lines, path: KeyPath) -> int | None:
    """The line of a path, or of the nearest table around it; `None` where there is none."""
    prefixes = (path[:length] for length in range(len(path), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def _parsed(lines: Sequence[str]) -> Table | None:
    try:
        return loads("\n".join(lines))
    except ValueError:
        return None


def _note(lines: Lines, path: KeyPath, line: int) -> None:
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], line)


def _header_path(found: Table, counts: dict[KeyPath, int]) -> KeyPath:
    """The path of `[a.b]` or `[[a.b]]`, each array of tables followed by its current index."""
    path: KeyPath = ()
    value: Any = found
    while value:
        if path in counts:
            path = (*path, counts[path])
        ((key, value),) = value.items()
        path = (*path, key)
        if value == [{}]:
            counts[path] = counts.get(path, -1) + 1
            return (*path, counts[path])
    return path


def _note_pairs(lines: Lines, path: KeyPath, value: Any, line: int) -> None:
    _note(lines, path, line)
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, each in value.items() if isinstance(value, dict) else ():
        _note_pairs(lines, (*path, key), each, line)
