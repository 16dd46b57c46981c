"""Where weights come from: GGUF, published safetensors checkpoints, or a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_ane.core.errors import SourceError
from pytest_ane.manifest import Source as Origin
from pytest_ane.sources.base import FloatArray, Source, Spread, Tokenizer
from pytest_ane.sources.identity import locate
from pytest_ane.sources.seeded import GENERATOR, SeededSource, SpreadOf

__all__ = [
    "FloatArray",
    "SeededSource",
    "Source",
    "Spread",
    "SpreadOf",
    "Tokenizer",
    "identify",
    "locate",
    "open_source",
    "source_path",
]


def open_source(origin: Origin, spread: SpreadOf) -> Source:
    """Open what a manifest names as a model's source.

    Args:
        origin: the manifest's table, its path absolute.
        spread: how a family's tensors are distributed, asked by a seeded source alone.

    Raises:
        SourceError: a file is missing, broken or of a kind that is not read.
    """
    if origin.seeded is not None:
        return SeededSource(origin.seeded, spread, origin.config)
    path = source_path(origin)
    if _is_checkpoint(path):
        from pytest_ane.sources.safetensors import SafetensorsSource

        return SafetensorsSource(path, origin.config)
    from pytest_ane.sources.gguf import GGUFSource

    return GGUFSource(path)


def identify(origin: Origin, root: Path | None = None) -> dict[str, Any]:
    """What a model's weights depend on, JSON-serialisable: a part of every cache key.

    Of files the SHA-256 digests (`identity.digests` says what is trusted), of a seeded source the
    seed and the generator's version; of all the manifest's `config`.

    Args:
        origin: the manifest's table, its path absolute.
        root: the cache folder, where digests of large files are remembered.

    Raises:
        SourceError: a file is missing or, with a `sha256` in the manifest, another one.
    """
    if origin.seeded is not None:
        return {"seeded": origin.seeded, "generator": GENERATOR, "config": origin.config}
    from pytest_ane.sources.identity import digests

    path = source_path(origin)
    found = digests(_files(path), root)
    if origin.sha256 not in (None, found.get(path.name)):
        raise SourceError(_another(origin.sha256, path, found.get(path.name)))
    return {"files": found, "config": origin.config}


def source_path(origin: Origin) -> Path:
    """The file or folder of a manifest's source that is not seeded; `SourceError` if missing."""
    path = origin.path or locate(origin.package or "", origin.file or "")
    if not path.exists():
        raise SourceError(f"{path}: no such file; check the source in shards.toml.")
    return path


def _is_checkpoint(path: Path) -> bool:
    from pytest_ane.sources.checkpoint import refuse_pickle

    refuse_pickle(path)
    return path.is_dir() or path.suffix in (".safetensors", ".json")


def _files(path: Path) -> dict[str, Path]:
    """Every file that weights, configuration and tokenizer come from, by name."""
    if not _is_checkpoint(path):
        return {path.name: path}
    from pytest_ane.sources.checkpoint import BESIDE, INDEX, Checkpoint
    from pytest_ane.sources.identity import present

    checkpoint = Checkpoint.find(path)
    # Of two files with a tensor of one name, the index says which one is read.
    index = [] if checkpoint.index is None else [path.name if path.is_file() else INDEX]
    return present(checkpoint.folder, (*checkpoint.files, *index, *BESIDE))


def _another(wanted: str | None, path: Path, found: str | None) -> str:
    if found is None:
        return (
            f"{path}: sha256 is the digest of one weights file, and this is none; leave it out of "
            "shards.toml's source."
        )
    return (
        f"{path}: its SHA-256 is {found}, not {wanted} as shards.toml says; the file is damaged, "
        "incomplete or another version."
    )
