"""What weights depend on, for cache keys; digests of large files are remembered between runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from pytest_ane.digests import file_digest, key_digest

REMEMBERED = 1 << 26
"""Files from 64 MB are hashed once, smaller ones, in 0.1 s at most, in every run."""


def digests(files: Mapping[str, Path], root: Path | None = None) -> dict[str, str]:
    """SHA-256 of files by their names; several are hashed at once.

    A large file whose path, size, inode and time of change are those of an earlier run is trusted
    to have the digest it had then: 50 GB take a minute to hash. Who changes bytes and puts the
    time back must delete the folder `digests` of the cache.

    Args:
        files: paths by the names that the result has.
        root: the cache folder; the user's own by default.
    """
    folder = (root or user_cache_path("pytest-ane")) / "digests"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda path: _digest(path, folder), files.values())
        return dict(zip(files, found, strict=True))


def present(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Those of the names that are files in a folder."""
    return {name: folder / name for name in names if (folder / name).is_file()}


def _digest(path: Path, folder: Path) -> str:
    if path.stat().st_size < REMEMBERED:
        return file_digest(path)
    name = key_digest(str(path.resolve()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # One process hashes and the others wait: they would only share the disk.
        with FileLock(folder / f"{name}.lock"):
            return _remembered(path, folder / f"{name}.json")
    except OSError:  # A cache that cannot be written costs time, not the run.
        return file_digest(path)


def _remembered(path: Path, record: Path) -> str:
    stat = path.stat()
    known = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}
    with suppress(OSError, ValueError, KeyError):
        found = json.loads(record.read_text())
        if isinstance(found, dict) and {**found, **known} == found:
            return str(found["sha256"])
    digest = file_digest(path)
    new = record.with_suffix(".tmp")
    new.write_text(json.dumps({"path": str(path), **known, "sha256": digest}))
    new.replace(record)
    return digest
