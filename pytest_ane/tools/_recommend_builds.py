"""A model's compression put into its manifest; comments and order of everything else stay.

The new text is read back: it has to say exactly what was meant, or nothing is written.
"""

from __future__ import annotations

import difflib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import tomlkit
from pydantic import TypeAdapter, ValidationError
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Comment, InlineTable, Item, Table, Whitespace

from pytest_ane import make as build
from pytest_ane.backends import Backend, Runner
from pytest_ane.make import Artifact, Cache
from pytest_ane.make.disk import temporary_files_in
from pytest_ane.manifest import (
    Compression,
    Linear,
    Manifest,
    Palettize,
    Settings,
    Shard,
    Uncompressed,
    parse,
)
from pytest_ane.manifest.base import TOMLDecodeError, loads
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.project.models import OpenModel
from pytest_ane.tools._recommend_search import Choice, Unit, shard_settings

# The menu: named settings a weight may get, from a file, or the default here.

Menu: TypeAlias = Mapping[str, Settings]


def _kmeans(nbits: int, group: int) -> Palettize:
    return Palettize.model_validate(
        {"nbits": nbits, "granularity": "per_grouped_channel", "group_size": group}
    )


DEFAULT: Menu = MappingProxyType(
    {
        "4-bit k-means g16": _kmeans(4, 16),
        "4-bit k-means g4": _kmeans(4, 4),
        "6-bit k-means g16": _kmeans(6, 16),
        "6-bit k-means g4": _kmeans(6, 4),
        "int8 per channel": Linear(),
        "8-bit k-means g16": _kmeans(8, 16),
    }
)
"""What is tried unless `--menu` says otherwise."""


def menu_of(file: Path | None) -> Menu:
    """The settings to choose from: the file's, else the default.

    Raises:
        ManifestError: the file cannot be read, or a setting in it is wrong; or the menu has
            fewer than two settings, or one with exceptions of its own.
    """
    menu = _read(file) if file else DEFAULT
    where = str(file) if file else "menu"
    if len(menu) < 2:
        raise ManifestError(f"{where}: a menu needs at least two settings to choose from; add one.")
    for name, setting in menu.items():
        if setting.keep or setting.overrides:
            raise ManifestError(
                f"{where}: {name!r} has keep or overrides; a setting of a menu is for any weight, "
                "so leave them out (the model's own compression.keep is kept)."
            )
    return menu


def _read(file: Path) -> Menu:
    try:
        tables = loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ManifestError(f"--menu {file} cannot be read: {error.strerror}.") from None
    except (TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"--menu {file}: not valid TOML: {error}.") from None
    return {name: _setting(file, name, table) for name, table in tables.items()}


def _setting(file: Path, name: str, table: object) -> Settings:
    adapter: TypeAdapter[Settings] = TypeAdapter(Compression)
    try:
        return adapter.validate_python(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ManifestError(
            f"--menu {file}: {name!r}: {f'{key}: ' if key else ''}{first['msg']}."
        ) from None


# Packages of candidates, compressed from uncompressed ones, and a backend that keeps them.


class Builds:
    """One model's shards under any compression.

    Args:
        opened: the model.
        cache: where shards are kept; what a killed search built is found there again.
        menu: the settings.
    """

    def __init__(self, opened: OpenModel, cache: Cache, menu: Menu) -> None:
        self.shards: Mapping[str, Shard] = {shard.id: shard for shard in opened.model.shards}
        self.menu = menu
        self._opened, self._cache = opened, cache
        self._plain: dict[str, Artifact] = {}

    def settings(
        self, units: Mapping[str, tuple[Unit, ...]], choice: Choice
    ) -> dict[str, Settings]:
        """The compression of every shard under a choice, by id; `units` are the shards'."""
        return {
            id: shard_settings(units[id], choice, self.menu, shard.requested.keep)
            for id, shard in self.shards.items()
        }

    def all_with(self, shard: str, setting: str) -> Artifact:
        """A shard with one setting for all weights but those that the manifest keeps."""
        chosen, keep = self.menu[setting], list(self.shards[shard].requested.keep)
        return self.build(shard, type(chosen).model_validate(setting_keys(chosen) | {"keep": keep}))

    def build(self, shard: str, settings: Settings) -> Artifact:
        """A shard with these settings, from the cache or compressed now."""
        return build.build_shard(
            self.shards[shard].model_copy(update={"compression": settings}),
            self._cache,
            identity=self._opened.identity,
            model=lambda: self._opened.language_model,
            source=self.plain(shard),
        )

    def plain(self, shard: str) -> Artifact:
        """A shard with all weights in fp16, converted once."""
        if shard not in self._plain:
            self._plain[shard] = build.uncompressed(
                self.shards[shard],
                self._cache,
                identity=self._opened.identity,
                model=lambda: self._opened.language_model,
            )
        return self._plain[shard]

    @contextmanager
    def only(self, unit: Unit, setting: str) -> Iterator[Artifact]:
        """A shard with one unit compressed and everything else in fp16; gone afterwards."""
        shard = self.shards[unit.shard]
        override = {"weights": unit.glob} | setting_keys(self.menu[setting])
        table = {"method": "none", "overrides": [override], "keep": list(shard.requested.keep)}
        alone = shard.model_copy(update={"compression": Uncompressed.model_validate(table)})
        plain = self.plain(unit.shard)
        with tempfile.TemporaryDirectory(prefix="pytest-ane-") as folder:
            # coremltools' own temporary files go with the folder.
            with temporary_files_in(Path(folder)):
                artifact = build.compressed(alone, plain, Path(folder))
            yield artifact


class LoadedBackend:
    """A backend in which the runners of some artifacts stay loaded: stacks share most shards."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.on_device = backend.name, backend.on_device
        self._backend = backend
        self._kept: frozenset[Path] = frozenset()
        self._runners: dict[tuple[Path, str | None], Runner] = {}

    def keep(self, artifacts: Iterable[Path]) -> None:
        """Let the runners of these artifacts stay from now on; all others are dropped."""
        self._kept = frozenset(artifacts)
        self._runners = {key: run for key, run in self._runners.items() if key[0] in self._kept}

    def load(self, artifact: Path, function: str | None = None) -> Runner:
        """A runner, from memory or loaded now."""
        key = artifact, function
        runner = self._runners.get(key) or self._backend.load(artifact, function)
        if artifact in self._kept:
            self._runners[key] = runner
        return runner

    @cached_property
    def _simulated(self) -> LoadedBackend | None:
        backend = self._backend.simulated()
        return None if backend is None else LoadedBackend(backend)

    def simulated(self) -> LoadedBackend | None:
        """The same in the ANE's arithmetic, with runners of its own."""
        if self._simulated is not None:
            self._simulated.keep(self._kept)
        return self._simulated

    @property
    def rule_shares(self) -> RuleShares:
        """By which rules the runners that are loaded have computed so far."""
        shares: RuleShares = getattr(self._backend, "rule_shares", RuleShares())
        return shares

    def provenance(self) -> dict[str, str]:
        """Provenance of the backend that runs."""
        return self._backend.provenance()


# A model's compression put into its manifest; comments and order of everything else stay.
#
# The new text is read back: it has to say exactly what was meant, or nothing is written.

_COMPRESSION = "compression"


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
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), str(file), f"{file} (recommended)", lineterm=""
    )
    yield from lines


def save(file: Path, text: str) -> None:
    """Replace a manifest's text at once; a link stays one.

    Raises:
        ManifestError: it cannot be written.
    """
    try:
        write_atomically(file.resolve(), text.encode())
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None


def _compressed(manifest: Manifest, name: str, wanted: Mapping[str, Settings]) -> Manifest:
    """A manifest with other compression for a model's shards, as records."""

    def shards(model: Any) -> tuple[Any, ...]:
        return tuple(s.model_copy(update={_COMPRESSION: wanted[s.id]}) for s in model.shards)

    models = tuple(
        model.model_copy(update={"shards": shards(model)}) if model.name == name else model
        for model in manifest.models
    )
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

    Returns:
        Those that nothing follows: the end of the file.
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
    if isinstance(item, AoT):
        parts = item.body
    else:
        container = item.value if isinstance(item, Table) else item
        parts = [part for _, part in getattr(container, "body", ())]
    if isinstance(item, Table):
        yield item
    for part in parts:
        yield from _headed(part)


def _last_comments(table: Table) -> str:
    """What stands between a table's last key and the next header."""
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
