"""A model's compression put into its manifest; every other line of the file stays as it is.

tree-sitter's grammar of TOML says where tables and keys are, and the new text is read back: it
has to say exactly what was meant, or nothing is written.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ManifestError
from pytest_ane.manifest import Settings, load
from pytest_ane.manifest.layers import value_at
from pytest_ane.manifest.locate import spans
from pytest_ane.manifest.toml import loads
from pytest_ane.recommend.units import said


def rewritten(text: str, file: Path, model: str, wanted: Mapping[str, Settings]) -> str:
    """A manifest's text with other compression for a model's shards.

    The compression that most shards have becomes the model's, others get a table of their own.

    Args:
        text: the manifest.
        file: where it is; paths in it are relative to that.
        model: the model's name.
        wanted: the compression of every shard, by id.

    Raises:
        ManifestError: the file's layout leaves no place for it, or the result would say
            something else.
    """
    if _says(text, file, model, wanted):
        return text
    tables = _tables(text, model, wanted)
    cut, place = _without(text, model)
    before = cut[:place].splitlines()
    # A comment right above stays with the table.
    gap = "\n" if before and before[-1].strip() and not before[-1].startswith("#") else ""
    after = cut[place:].lstrip("\n")
    new = cut[:place] + gap + tables + (f"\n{after}" if after else "")
    if not _says(new, file, model, wanted):
        raise ManifestError(
            f"{file}: the compression of {model} cannot be changed in place; replace its "
            f"compression tables by hand with:\n{tables}"
        )
    return new


def diff(old: str, new: str, file: Path) -> Iterator[str]:
    """Lines of the unified difference."""
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), str(file), f"{file} (recommended)", lineterm=""
    )
    yield from lines


def write_atomically(file: Path, text: str) -> None:
    """Replace a file's text at once, its permissions kept; a link stays one.

    Raises:
        ManifestError: it cannot be written.
    """
    target = file.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        try:
            with os.fdopen(handle, "wb") as new:
                new.write(text.encode())
            shutil.copymode(target, name)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None


def _says(text: str, file: Path, model: str, wanted: Mapping[str, Settings]) -> bool:
    """Whether a manifest of this text asks for exactly this compression."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        copy.write_bytes(text.encode())
        try:
            found = {shard.id: shard.compression for shard in load(copy).model_of(model).shards}
        except (ManifestError, KeyError):
            return False
    return found == dict(wanted)


def _without(text: str, model: str) -> tuple[str, int]:
    """The text without the model's compression, and where its new tables may stand."""
    data, place = text.encode(), None
    removed = []
    for path, (start, stop), is_table in spans(text):
        if _is_compression(path, model):
            if is_table and place is None:
                place = start
            removed.append((start, stop))
    for start, stop in reversed(_merged(removed)):
        # The rest of the last line goes too, unless it holds a comment.
        rest = data[stop : (data + b"\n").index(b"\n", stop)]
        stop += len(rest) + 1 if not rest.strip() else 0
        data = data[:start] + data[stop:]
    kept = data.decode()
    if place is None:
        return kept.rstrip("\n") + "\n", len(kept.rstrip("\n")) + 1
    return kept, len(data[:place].decode())


def _is_compression(path: tuple[Any, ...], model: str) -> bool:
    """Whether a path is that of the model's compression, of one of its shards', or inside one."""
    if path[:2] != ("models", model):
        return False
    own = path[2:] if path[2:3] != ("shard",) else path[4:]
    return own[:1] == ("compression",)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _tables(text: str, model: str, wanted: Mapping[str, Settings]) -> str:
    """The tables as text: the model's, then those of shards that differ from it."""
    forms = {shard: _key(setting) for shard, setting in wanted.items()}
    common = Counter(forms.values()).most_common(1)[0][0]
    main = next(setting for shard, setting in wanted.items() if forms[shard] == common)
    # What is written below, in [defaults], shows through unless it is said again.
    below = value_at(loads(text), ("defaults", "compression")) or {}
    parts = [_table(("models", model, "compression"), main, below)]
    above = said(main)
    for shard, setting in wanted.items():
        if forms[shard] != common:
            path = ("models", model, "shard", shard, "compression")
            parts.append(_table(path, setting, {**below, **above}))
    return "\n".join(parts)


def _table(path: tuple[str, ...], setting: Settings, below: Mapping[str, Any]) -> str:
    """One table; what another one says below it is said again, if only to be the default."""
    keys = said(setting)
    if setting.method == below.get("method"):
        dumped = setting.model_dump(mode="json")
        keys |= {key: dumped[key] for key in below if key in dumped and key not in keys}
    lines = [f"[{'.'.join(map(_quoted, path))}]"]
    lines += [f"{key} = {_value(value)}" for key, value in keys.items() if value is not None]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + "".join(f"    {_value(each)},\n" for each in value) + "]"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{k} = {_value(v)}' for k, v in value.items() if v is not None)} }}"
    return json.dumps(value, ensure_ascii=False)


def _quoted(key: str) -> str:
    plain = key.replace("-", "a").replace("_", "a")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key)


def _key(setting: Settings) -> str:
    return json.dumps(setting.model_dump(mode="json"), sort_keys=True)
