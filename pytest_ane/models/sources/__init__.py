"""Where weights come from: GGUF, published safetensors checkpoints, or a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from pytest_ane.manifest import SourceTable
from pytest_ane.manifest.chain import Embedding
from pytest_ane.mlprogram.arrays import Array, FloatArray
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


def open_source(table: SourceTable, spread: SpreadOf | None = None) -> Source:
    """Open what a manifest names as a model's source; seeded ones need the family's `spread`.

    Raises:
        SourceError: a file is missing, broken or of a kind that is not read.
    """
    if table.seeded is not None:
        assert spread is not None
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


Read: TypeAlias = Callable[[Sequence[int]], Array]


@dataclass(frozen=True)
class RowTable:
    """A table of `height` rows of `width` numbers; only those that are asked for are read."""

    label: str
    height: int
    width: int
    scale: float
    _read: Read

    def rows(self, index: Sequence[int]) -> FloatArray:
        """Float32 `[len(index), width]`; `SourceError` for no such row, or NaN or infinity."""
        for row in index:
            if not 0 <= row < self.height:
                raise SourceError(f"{self.label}: has rows 0 to {self.height - 1}, not {row}.")
        rows: FloatArray = np.asarray(self._read(index), np.float32) * np.float32(self.scale)
        if not np.isfinite(rows).all():
            raise SourceError(f"{self.label}: one of the rows {list(index)[:4]} is not finite.")
        return rows


def open_rows(table: Embedding) -> RowTable:
    """Open a table; its values are read later.

    Raises:
        SourceError: the file is missing or broken, or the tensor is no matrix of numbers.
    """
    path = table.path
    if not path.is_file():
        raise SourceError(f"{path}: no such file; check the embedding in shards.toml.")
    of_source = path.suffix in (".gguf", ".safetensors")
    shape, read = (_of_source if of_source else _of_array)(table)
    extents = [extent for extent in shape if extent != 1]
    if len(extents) != 2:
        raise SourceError(f"{table.file}: has the shape {list(shape)}, which is no table of rows.")
    if len(shape) != 2 and math.prod(shape[:-1]) != extents[0]:
        raise SourceError(f"{table.file}: has the shape {list(shape)}; let a row be the last axis.")
    return RowTable(table.file, extents[0], extents[1], table.scale, read)


def _of_source(table: Embedding) -> tuple[Sequence[int], Read]:
    source = open_source(SourceTable(path=table.path))
    shape = source.shape(table.name)
    return shape, lambda index: source.rows(table.name, index, shape[-1])


def _of_array(table: Embedding) -> tuple[Sequence[int], Read]:
    try:
        stored: Any = np.load(table.path, mmap_mode="r", allow_pickle=False)
        array: Array = stored[table.name] if table.name else stored
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise SourceError(f"{table.file}: cannot be read ({error}).") from None
    if array.dtype.kind not in "fiu":
        raise SourceError(f"{table.file}: holds {array.dtype}, not numbers.")
    return array.shape, lambda index: array[list(index)]
