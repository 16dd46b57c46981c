"""What all tasks of a run share, the manifest as the run has it; and cache entries on their way."""

from __future__ import annotations

import io
import pickle
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pytest_ane
from pytest_ane.backends import ComputeUnits
from pytest_ane.make import Cache
from pytest_ane.make.shared_store import KINDS, damage, pack, unpacked
from pytest_ane.manifest import Manifest, Shard
from pytest_ane.mlprogram.digests import file_digest, key_digest, tree_bytes, tree_digest
from pytest_ane.mlprogram.errors import AneError, CacheError
from pytest_ane.project.preflight import version_of
from pytest_ane.project.project import Project
from pytest_ane.records.record import source_digest
from pytest_ane.records.run import plugin_digest


class Name(NamedTuple):
    """A cache entry's kind and key."""

    kind: str
    key: str


class Parcel:
    """Entries by name, in a cache or as archives; they are read only once a task is pickled."""

    def __init__(
        self, names: Sequence[Name], size: int, root: Path | None = None,
        archives: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        self.names, self.size = tuple(names), size
        self._root, self._archives = root, tuple(archives)

    @classmethod
    def of(cls, cache: Cache, paths: Iterable[Path]) -> Parcel:
        """Those of a cache's entries that any machine can use under the same name."""
        names = sorted(Name(path.parent.name, path.name) for path in paths)
        names = [n for n in names if n.kind in KINDS and re.fullmatch(r"[0-9a-f]{64}", n.key)]
        return cls(names, sum(tree_bytes(cache.path(*name)) for name in names), cache.root)

    def settle(self, cache: Cache) -> None:
        """Put what came from another machine into a cache; `CacheError` unless it is whole."""
        if self._root is None:
            for name, archive in zip(self.names, self._archives, strict=True):
                cache.get_or_make(*name, partial(_unpack, name, archive), shared=False)
        self._root, self._archives = cache.root, ()

    def __sizeof__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[Any, ...]:
        archives = self._archives
        if (root := self._root) is not None:
            archives = tuple(_archive(root / name.kind / name.key) for name in self.names)
        return Parcel, (self.names, self.size, None, archives)


def _archive(entry: Path) -> bytes:
    file = io.BytesIO()
    try:
        pack(entry, file)
    except OSError:
        return b""
    return file.getvalue()


def _unpack(name: Name, archive: bytes, folder: Path) -> None:
    if not archive:
        raise CacheError(f"{name.kind}/{name.key[:16]} is gone from the worker that made it.")
    if wrong := unpacked(io.BytesIO(archive), folder) or damage(folder, name):
        raise CacheError(f"{name.kind}/{name.key[:16]} did not arrive whole: {wrong}.")


LIBRARIES = ("coremltools", "torch", "numpy", "numba", "tokenizers", "transformers", "gguf")
"""What decides bytes and numbers, besides pytest-ane and Python."""


class Inputs(NamedTuple):
    """A checkout's digests by model, and by shard of its own files; else why it lacks them."""

    digests: dict[str, str]
    lacking: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, as workers take part in it.

    Attributes:
        shards: those selected, with their policies as the run has them.
        identities: what each model depends on, by name.
        judged: qualified ids of the shards whose fidelity is asked for.
        store: URL or folder of the store that machines share; empty for none.
        memory, seconds: that a call of a program may take, as of `process_budget`.
    """

    manifest: Manifest
    shards: tuple[Shard, ...]
    identities: Mapping[str, dict[str, Any]]
    judged: frozenset[str]
    store: str
    units: ComputeUnits
    device_timeout: float | None
    memory: int | None
    seconds: float | None

    def packed(self) -> bytes:
        """Pickled; paths below the manifest's folder are relative to it."""
        file = io.BytesIO()
        _Pickler(file, self.manifest.path.absolute().parent).dump(self)
        return file.getvalue()


def unpacked_job(data: bytes, folder: Path) -> Job:
    """A job as a worker has it, whose checkout is a folder; who sends it is trusted."""
    job: Job = _Unpickler(io.BytesIO(data), folder).load()
    return job


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, root: Path) -> None:
        super().__init__(file)
        self._root = root

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, PurePath) and value.is_relative_to(self._root):
            return value.relative_to(self._root).as_posix()
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, root: Path) -> None:
        super().__init__(file)
        self._root = root

    def persistent_load(self, value: str) -> Path:
        return self._root / value


@cache
def versions() -> dict[str, str]:
    """What must be the same on all machines: Python, libraries, and pytest-ane's own code."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version_of(name) for name in LIBRARIES},
        "pytest-ane": f"{pytest_ane.__version__} (code {plugin_digest()[:12]})",
    }


def needs_weights(shard: Shard) -> bool:
    """Whether it is built from its model's weights, or compared with them."""
    return shard.artifact is None or shard.reference == "float32"


def inputs(project: Project) -> Inputs:
    """What this machine's checkout gives a run."""
    found = Inputs({}, {})
    files = {
        shard.qualified: own
        for shard in project.shards
        if (own := [path for path in (shard.artifact, shard.reference, shard.uncompressed)
                    if isinstance(path, Path)])
    }  # fmt: skip
    models = sorted({shard.model for shard in project.shards if needs_weights(shard)})
    for name in (*models, *files):
        try:
            if name in files:
                of = [tree_digest(p) if p.is_dir() else file_digest(p) for p in files[name]]
                found.digests[name] = key_digest(of)
            else:
                found.digests[name] = source_digest(project.model(name).identity)
        except (AneError, OSError, ImportError) as error:
            found.lacking[name] = str(error)
    return found
