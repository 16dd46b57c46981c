"""From a file to records: parse, merge defaults and overrides, validate, resolve paths."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_ane.errors import ManifestError
from pytest_ane.manifest.ids import expand, is_id
from pytest_ane.manifest.records import Manifest, Model, Shard
from pytest_ane.manifest.tables import Common, ManifestTable, ModelTable

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Table = dict[str, Any]
KeyPath = tuple[str | int, ...]
_SHARED = tuple(field.alias or name for name, field in Common.model_fields.items())


def load(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        ManifestError: the file is missing, is no TOML, or says something we do not understand;
            one line for each thing that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ManifestError(
            f"{path}: no such manifest; run 'pytest-ane init' to write one, "
            "or name it with --ane-manifest=FILE."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: cannot be read as UTF-8 text: {error}.") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: not valid TOML: {error}.") from None
    return _Reader(path, text, raw).manifest()


def of_package(package: Path) -> Manifest:
    """A manifest of one package without a reference, for `--ane-package`.

    Raises:
        ManifestError: the package does not exist.
    """
    if not package.exists():
        raise ManifestError(f"--ane-package: {package} does not exist.")
    name = "".join(c if is_id(f"x{c}") else "-" for c in package.name.partition(".")[0])
    shard = Shard.model_construct(
        model="package", id=name if is_id(name) else f"p-{name}"[:64], artifact=package,
        reference="none",
    )  # fmt: skip
    return Manifest(path=package, models=(Model(name="package", shards=(shard,)),))


class _Reader:
    def __init__(self, path: Path, text: str, raw: Table) -> None:
        self.path, self.text, self.raw = path, text, raw

    def manifest(self) -> Manifest:
        complete = _without_partial_tables(self.raw)
        table = self.validated(ManifestTable, complete, lambda path: path)
        models = tuple(self.model(name, table.models[name]) for name in table.models)
        return Manifest(path=self.path, models=models)

    def model(self, name: str, table: ModelTable) -> Model:
        if not is_id(name):
            self.fail(("models", name), "a model's name is letters, digits, '_', '-' and '.'")
        ids = self.shard_ids(name, table)
        shards = tuple(self.shard(name, table, shard) for shard in ids)
        source = shards[0].source if shards else None
        # A model's own policy and limits: those of a shard that no override names.
        merged, origin = self.merged(name, None)
        common = self.validated(Common, merged, origin)
        return Model.model_construct(
            name=name, family=table.family, source=source, shards=shards, prompts=table.prompts,
            policy=common.policy, max_tokens=common.max_tokens,
        )  # fmt: skip

    def shard_ids(self, name: str, table: ModelTable) -> list[str]:
        """Explicit ids, from the ranges of a family's model or from the tables of the user's."""
        here: KeyPath = ("models", name)
        if table.family is None:
            if table.shards is not None or table.source is not None:
                self.fail(here, "shards and source need a family; name one, such as 'llama'")
            for shard in table.shard:
                if not is_id(shard):
                    self.fail((*here, "shard", shard), "not a shard id (letters, digits, _ . -)")
            ids = list(table.shard)
        else:
            if table.source is None or table.shards is None:
                self.fail(here, "a model with a family needs source and shards")
            terms = [table.shards] if isinstance(table.shards, str) else list(table.shards or ())
            ids = []
            for term in (t for text in terms for t in text.split(",")):
                try:
                    ids += expand(term)
                except ValueError as error:
                    self.fail((*here, "shards"), str(error))
        if not ids:
            self.fail(here, "the model has no shards")
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            self.fail((*here, "shards"), f"shard {twice} is named twice")
        for glob in table.shard:
            if not any(fnmatchcase(shard, glob) for shard in ids):
                self.fail((*here, "shard", glob), "matches no shard of this model")
        return ids

    def shard(self, name: str, table: ModelTable, shard: str) -> Shard:
        merged, origin = self.merged(name, shard)
        common = self.validated(Common, {k: v for k, v in merged.items() if k in _SHARED}, origin)
        here = origin(("artifact",))
        artifact, reference = merged.get("artifact"), merged.get("reference")
        if artifact is None and table.family is None:
            self.fail(("models", name, "shard", shard), "needs an artifact = '....mlpackage'")
        if artifact is not None and reference is None:
            self.fail(here, "also needs a reference: another package, 'float32' (with a family) "
                      "or 'none'")  # fmt: skip
        if reference == "float32" and table.family is None:
            self.fail(origin(("reference",)), "'float32' needs a family")
        asked = "compression" in merged
        source = table.source
        if source is not None and source.path is not None:
            source = source.model_copy(update={"path": self.resolved(source.path)})
        default = "float32" if table.family else "none"
        return Shard.model_construct(
            model=name,
            id=shard,
            family=table.family,
            source=source,
            artifact=self.resolved(artifact) if artifact else None,
            reference=self.reference(reference or default),
            compression=common.compression if asked else None,
            probes=common.probes,
            policy=common.policy,
            max_tokens=common.max_tokens,
            target=common.target,
        )

    def reference(self, text: str) -> Any:
        return text if text in ("float32", "none") else self.resolved(text)

    def resolved(self, path: str | Path) -> Path:
        return Path(self.path.parent, path).expanduser().absolute()

    def merged(self, name: str, shard: str | None) -> tuple[Table, Any]:
        """Defaults, model and matching shard tables merged; and where each merged key came from."""
        layers: list[tuple[KeyPath, Table]] = []
        if isinstance(defaults := self.raw.get("defaults"), dict):
            layers.append((("defaults",), defaults))
        model = self.raw["models"][name]
        layers.append((("models", name), {k: v for k, v in model.items() if k in _SHARED}))
        for glob, table in model.get("shard", {}).items():
            if shard is not None and fnmatchcase(shard, glob):
                layers.append((("models", name, "shard", glob), table))
        merged: Table = {}
        for _, table in layers:
            merged = _merge(merged, table)

        def origin(path: KeyPath) -> KeyPath:
            for prefix, table in reversed(layers):
                if _has(table, path):
                    return (*prefix, *path)
            return (*layers[-1][0], *path)

        return merged, origin

    def validated(self, kind: Any, table: Table, origin: Any) -> Any:
        try:
            return kind.model_validate(table)
        except ValidationError as error:
            from pytest_ane.manifest.messages import of_error

            found = of_error(self.path, self.text, error.errors(include_url=False), origin)
            raise ManifestError("\n".join(found)) from None

    def fail(self, path: KeyPath, text: str) -> None:
        from pytest_ane.manifest.locate import key_lines
        from pytest_ane.manifest.messages import sentence

        raise ManifestError(sentence(self.path, key_lines(self.text), path, text))


def _merge(below: Table, above: Table) -> Table:
    """Tables merge key by key; another compression method replaces the one below."""
    result = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            other = "method" in value and value["method"] != old.get("method")
            result[key] = value if other else _merge(old, value)
        else:
            result[key] = value
    return result


def _has(table: Any, path: KeyPath) -> bool:
    for part in path:
        if isinstance(table, dict) and part in table:
            table = table[part]
        elif isinstance(table, list) and isinstance(part, int) and part < len(table):
            table = table[part]
        else:
            return False
    return True


def _without_partial_tables(raw: Table) -> Table:
    """The file without what is only complete after merging: compression of models and shards."""

    def stripped(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: stripped(v) for k, v in value.items() if k != "compression"}

    return {key: stripped(value) for key, value in raw.items()}
