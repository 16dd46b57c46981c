"""Where weights come from: GGUF, published safetensors checkpoints, or a seed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_ane.manifest import SourceTable
from pytest_ane.mlprogram.digests import digests
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources._seeded import GENERATOR, SeededSource, SpreadOf
from pytest_ane.models.sources.base import Source, Spread
from pytest_ane.models.sources.files import (
    COMPANIONS,
    GENERATION,
    INDEX,
    Checkpoint,
    locate,
    locate_snapshot,
    module_files,
    read_json,
    refuse_pickle,
)

__all__ = [
    "SeededSource", "Source", "Spread", "end_tokens", "identify", "locate", "open_source",
    "source_path",
]  # fmt: skip


def open_source(table: SourceTable, spread: SpreadOf) -> Source:
    """Open what a manifest names as a model's source; seeded ones need the family's `spread`.

    Raises:
        SourceError: a file is missing, broken or of a kind that is not read.
    """
    if table.seeded is not None:
        return SeededSource(table.seeded, spread, table.config)
    path = source_path(table)
    if _is_checkpoint(path):
        from pytest_ane.models.sources._safetensors import SafetensorsSource

        return SafetensorsSource(path, table.config)
    from pytest_ane.models.sources._gguf import GGUFSource

    return GGUFSource(path)


def identify(table: SourceTable, root: Path) -> dict[str, Any]:
    """What a model's weights depend on, JSON-serialisable: a part of every cache key.

    Of files the SHA-256 digests (`mlprogram.digests` says what is trusted), of a seeded source the
    seed and the generator's version; of all the manifest's `config`. Of a hub's repository also the
    commit. `root` is the cache folder, where digests of large files are remembered.

    Raises:
        SourceError: a file is missing or, with a `sha256` in the manifest, another one.
    """
    if table.seeded is not None:
        return {"seeded": table.seeded, "generator": GENERATOR, "config": table.config}
    path = source_path(table)
    sums = digests(_files(path), root)
    if table.sha256 not in (None, actual := sums.get(path.name)):
        if actual is None:
            raise SourceError(
                f"{path}: sha256 is the digest of one weights file, and this is none; leave it out "
                "of shards.toml's source."
            )
        raise SourceError(
            f"{path}: its SHA-256 is {actual}, not {table.sha256} as shards.toml says; the file is "
            "damaged, incomplete or another version."
        )
    identity = {"files": sums, "config": table.config}
    if table.hub is not None:
        identity["hub"] = {"id": table.hub.partition("@")[0], "commit": _snapshot(table).name}
    return identity


def source_path(table: SourceTable) -> Path:
    """The file or folder of a manifest's source that is not seeded; `SourceError` if missing."""
    if table.hub is not None:
        return _snapshot(table) / (table.file or "")
    path = table.path or locate(table.package or "", table.file or "")
    if not path.exists():
        raise SourceError(f"{path}: no such file; check the source in shards.toml.")
    return path


_ENDS = (
    "eos_token_id", "text_config.eos_token_id", "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
)  # fmt: skip


def end_tokens(table: SourceTable, source: Source) -> frozenset[int]:
    """Tokens at which a model's answer ends, none where nothing says it.

    By its configuration, and by `generation_config.json` beside published weights, which names
    those of a chat's turns (https://huggingface.co/docs/transformers/main_classes/text_generation).
    """
    said: list[Any] = []
    for key in _ENDS:
        with suppress(SourceError):
            said.append(source.value(key))
    if table.seeded is None:
        path = source_path(table)
        file = (path if path.is_dir() else path.parent) / GENERATION
        if _is_checkpoint(path) and file.is_file():
            said.append(read_json(file).get("eos_token_id"))
    tokens = [token for each in said for token in (each if isinstance(each, list) else [each])]
    return frozenset(token for token in tokens if type(token) is int)


def _snapshot(table: SourceTable) -> Path:
    assert table.hub is not None
    repository, _, revision = table.hub.partition("@")
    return locate_snapshot(repository, revision or None, table.file)


def _is_checkpoint(path: Path) -> bool:
    refuse_pickle(path)
    return path.is_dir() or path.suffix in (".safetensors", ".json")


def _files(path: Path) -> dict[str, Path]:
    if not _is_checkpoint(path):
        return {path.name: path}
    checkpoint = Checkpoint.find(path)
    # The index says which files are read.
    index = [] if checkpoint.index is None else [path.name if path.is_file() else INDEX]
    companions = (*COMPANIONS, *module_files(checkpoint.folder))
    files = {n: checkpoint.folder / n for n in (*checkpoint.files, *index, *companions)}
    return {name: file for name, file in files.items() if file.is_file()}
