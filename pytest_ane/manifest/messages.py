"""pydantic's errors in the words of people who write `shards.toml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic_core import ErrorDetails

from pytest_ane.manifest.base import KeyPath, Record, one_of
from pytest_ane.manifest.layers import Layers, value_at, written
from pytest_ane.manifest.problems import Problem, at_key, at_table, at_value, dotted

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
    "misplaced": lambda c: str(c["says"]),
    "model_attributes_type": lambda _: "must be a table",
    "model_type": lambda _: "must be a table",
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
    says = _SAYS[kind](context) if kind in _SAYS else error["msg"]
    return at_value(layers.origin(path), value_at(table, path), says)


def _unknown(
    record: type[Record], location: Sequence[str | int], path: KeyPath, value: Any
) -> Problem:
    key, kinds = str(path[-1]), _tables(record, location[:-1])
    known, says = _fields(kinds), f"unknown key {key!r}"
    if close := get_close_matches(key, known, n=1):
        return at_key(path, f"{says}: did you mean {close[0]!r}?")
    if isinstance(value, dict) and len(path) == 5 and path[2] == "shard":
        whole = dotted((*path[:3], f"{path[3]}.{key}"))
        return at_key(path, f"{says}: a shard id with a dot is written in quotes, [{whole}]")
    if homes := [home[:-1] for kind in kinds for home in _homes(kind) if home[-1] == key]:
        table = dotted((*path[:-1], *min(homes, key=len)))
        return at_key(path, f"{says}: it belongs in [{table}]")
    return at_key(path, f"{says}: the keys here are {', '.join(sorted(known))}")


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
