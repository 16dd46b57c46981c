"""A model's compression put into its manifest; comments and order of everything else stay.

The new text is read back: it has to say exactly what was meant, or nothing is written.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Comment, InlineTable, Item, Table, Whitespace

from pytest_ane.manifest import Manifest, Settings, parse
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ManifestError

_COMPRESSION = "compression"


def rewritten(text: str, file: Path, model: str, wanted: Mapping[str, Settings]) -> str:
    """A manifest's text with other compression for a model's shards, by id.

    The compression that most shards have becomes the model's, others get a table of their own.

    Raises:
        ManifestError: the file's layout leaves no place for it, or the result would say
            something else.
    """
    before = parse(text, file)
    meant = _compressed(before, model, wanted)
    if before == meant:
        return text
    document = tomlkit.parse(text)
    main, own = _tables(document.unwrap(), wanted)
    try:
        table: Any = document["models"][model]
        end = _save_comments(document, table)
        _put(table, main)
        _put_shards(table, own)
        new = tomlkit.dumps(document) + end
        if parse(new, file) == meant:
            return new
    except (ManifestError, TOMLKitError, LookupError, ValueError):
        pass
    tables = {_COMPRESSION: main, "shard": {key: {_COMPRESSION: own[key]} for key in own}}
    raise ManifestError(
        f"{file}: the compression of {model} cannot be changed in place; replace its compression "
        f"tables by hand with:\n{tomlkit.dumps({'models': {model: tables}})}"
    )


def diff(old: str, new: str, file: Path) -> Iterator[str]:
    """Lines of the unified difference."""
    named = str(file), f"{file} (recommended)"
    return difflib.unified_diff(old.splitlines(), new.splitlines(), *named, lineterm="")


def save(file: Path, text: str) -> None:
    """Replace a manifest's text at once, or `ManifestError`; a link stays one."""
    try:
        write_atomically(file.resolve(), text.encode())
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None


def _compressed(manifest: Manifest, name: str, wanted: Mapping[str, Settings]) -> Manifest:
    """A manifest with other compression for a model's shards, as records."""
    model = manifest.model_of(name)
    shards = tuple(s.model_copy(update={_COMPRESSION: wanted[s.id]}) for s in model.shards)
    changed = model.model_copy(update={"shards": shards})
    models = tuple(changed if each is model else each for each in manifest.models)
    return manifest.model_copy(update={"models": models})


def _tables(
    document: Mapping[str, Any], wanted: Mapping[str, Settings]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The keys of the model's table, and those of each shard that differs from it."""
    forms = {shard: setting.model_dump_json() for shard, setting in wanted.items()}
    common = Counter(forms.values()).most_common(1)[0][0]
    main = next(setting for shard, setting in wanted.items() if forms[shard] == common)
    above = setting_keys(main)
    own = {s: _keys(setting, above) for s, setting in wanted.items() if forms[s] != common}
    return above, own


def _keys(setting: Settings, below: Mapping[str, Any]) -> dict[str, Any]:
    """A table's keys; what a table below it says is said again, if only to be the default."""
    keys = setting_keys(setting)
    if setting.method == below.get("method"):
        dumped = setting.model_dump(mode="json")
        keys |= {key: dumped[key] for key in below if key in dumped and key not in keys}
    return {key: value for key, value in keys.items() if value is not None}


def _save_comments(document: TOMLDocument, model: Any) -> str:
    """Hang the comments below each compression table, which are of what follows, on that.

    Those that nothing follows, at the end of the file, are returned.
    """
    tables = (model, *model.get("shard", {}).values())
    replaced = {id(part) for table in tables for part in _headed(table.get(_COMPRESSION))}
    comments = ""
    for table in _headed(document):
        if id(table) in replaced:
            comments += _last_comments(table)
        elif not table.is_super_table():
            table.trivia.indent = comments + table.trivia.indent
            comments = ""
    return comments


def _headed(item: Any) -> Iterator[Table]:
    """A table and those in it, in the file's order."""
    if isinstance(item, Table):
        yield item
    container = item.value if isinstance(item, Table) else item
    body = getattr(container, "body", ())
    for part in body if isinstance(item, AoT) else (part for _, part in body):
        yield from _headed(part)


def _last_comments(table: Table) -> str:
    body = [part for _, part in table.value.body if not isinstance(part, AoT | Table)]
    last = takewhile(lambda part: isinstance(part, Comment | Whitespace), reversed(body))
    text = "".join(part.as_string() for part in reversed([*last]))
    return text if "#" in text else ""


def _put(table: Any, keys: Mapping[str, Any]) -> None:
    """Give a table this compression, at the old one's place if there is one."""
    inline = isinstance(table, InlineTable) or isinstance(table.get(_COMPRESSION), InlineTable)
    table[_COMPRESSION] = _item(keys, tomlkit.inline_table() if inline else tomlkit.table())


def _put_shards(table: Any, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the compression of all shards, whose tables may be named by globs."""
    inline = isinstance(table, InlineTable)
    for key in list(table.setdefault("shard", _empty(inline))):
        # Looked up each time: of tables out of order, tomlkit's proxy takes one removal.
        shards = table["shard"]
        shards[key].pop(_COMPRESSION, None)
        if not shards[key]:
            del shards[key]
    for key, keys in own.items():
        _put(table["shard"].setdefault(key, _empty(inline)), keys)
    if not table["shard"]:
        del table["shard"]


def _empty(inline: bool) -> InlineTable | Table:
    return tomlkit.inline_table() if inline else tomlkit.table(is_super_table=True)


def _item(keys: Mapping[str, Any], table: Any) -> Item:
    for key, value in keys.items():
        if key == "overrides":
            array = tomlkit.array().multiline(isinstance(table, Table))
            array.extend(_item(each, tomlkit.inline_table()) for each in value)
            value = array
        if value is not None:
            table.append(key, value)
    return table  # type: ignore[no-any-return]
