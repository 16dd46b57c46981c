"""The JSON Schema of `shards.toml`, so that editors complete and check it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pytest_ane.manifest.base import Record
from pytest_ane.manifest.tables import ManifestTable

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the manifest as users write it, generated from the records.

    It cannot know what only layers of tables say together, so it asks for less than `load`: a
    shard's `compression = { nbits = 8 }` is valid, for the model's table completes it.
    """
    schema = ManifestTable.model_json_schema(by_alias=True)
    for record in _records(Record):
        if record.__name__ in schema["$defs"]:
            _describe(schema["$defs"][record.__name__], record)
    _describe(schema, ManifestTable)
    return {"$schema": _DRAFT, "title": "shards.toml of pytest-ane", **_plain(schema)}


def _records(base: type[Record]) -> Iterator[type[Record]]:
    for record in base.__subclasses__():
        yield record
        yield from _records(record)


def _describe(table: dict[str, Any], record: type[Record]) -> None:
    """Give every property the text below its field, and the defaults people would write."""
    texts = {name: text for kind in reversed(record.__mro__) for name, text in _docstrings(kind)}
    for key, name in zip(record.by_key(), record.model_fields, strict=True):
        table["properties"][key]["description"] = texts[name]


def _docstrings(record: type) -> Iterator[tuple[str, str]]:
    """The fields a record itself declares, with the string that follows each."""
    if not issubclass(record, Record):
        return
    (body,) = ast.parse(dedent(inspect.getsource(record))).body
    assert isinstance(body, ast.ClassDef)
    for pair in pairwise(body.body):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, " ".join(words.split())


def _plain(schema: Any) -> Any:
    """Without pydantic's titles, OpenAPI's discriminators, and nulls, which TOML does not have."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    plain = {
        key: _plain(value)
        for key, value in schema.items()
        if key != "discriminator"
        and not (key == "title" and isinstance(value, str))
        and not (key == "default" and (value is None or isinstance(value, dict)))
    }
    if "patternProperties" in schema:
        plain["additionalProperties"] = False
    if "discriminator" in schema:
        plain["anyOf"] = plain.pop("oneOf")  # A partial table may fit several branches.
    if len(plain.get("anyOf", ())) == 1:
        plain |= {**plain.pop("anyOf")[0], **plain}
    return plain
