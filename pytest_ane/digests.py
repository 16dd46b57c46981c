"""SHA-256 digests of files and packages: the identity of everything that is measured."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes in hex; a file that did not change is read once per process."""
    stat = path.stat()
    return _file_digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=4096)
def _file_digest(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def tree_files(path: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder by relative POSIX path, sorted by path."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return {p.relative_to(path).as_posix(): file_digest(p) for p in files}


def tree_digest(path: Path) -> str:
    """One SHA-256 for a package: of the sorted `path digest` lines of its files."""
    lines = "".join(f"{name} {digest}\n" for name, digest in tree_files(path).items())
    return hashlib.sha256(lines.encode()).hexdigest()


def tree_bytes(path: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def key_digest(parts: object) -> str:
    """SHA-256 of a JSON-serialisable value in canonical form: the key of a cache entry."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
