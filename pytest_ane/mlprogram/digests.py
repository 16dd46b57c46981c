"""SHA-256 digests of files and packages: the identity of everything that is measured."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock

from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ProgramError

_CHUNK = 1 << 20
FileState: TypeAlias = tuple[int, ...]
"""Size, times of change in ns, inode and device: the same again means the same bytes."""

_RACY = 2 * 10**9
"""Nanoseconds in which a second change may leave a file's time as it is; FAT counts in 2 s."""
_LONGEST = 16 << 20
"""Bytes of a list of digests; a longer one, some 50,000 lines, is cleared of what is gone."""
_HEX = frozenset("0123456789abcdef")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes in hex; a file that did not change is read once per process.

    Within `remembered`, one that an earlier process read is not read at all.
    """
    path = path.absolute()
    return _file_digest(path, file_state(path))


@contextmanager
def remembered(folder: Path, *, rehash: bool = False) -> Iterator[None]:
    """Keep digests of files in a folder, for this process and later ones, which may share it.

    A file is taken for unchanged if its path, size, times of change, inode and device are; one
    that was changed less than two seconds before it was read is not remembered. Whatever is
    wrong with the folder or the list in it costs time, not the run. `rehash` reads every file once
    more, and remembers anew; it holds for what is nested in it too.
    """
    global _memory
    before = _memory
    _memory = _Memory(folder / "files.jsonl", rehash or (before is not None and before.rehash))
    _file_digest.cache_clear()
    try:
        yield
    finally:
        _memory = before


LARGE = 1 << 26
"""Files of 64 MB in all are hashed by one process while others wait; smaller ones take 0.1 s."""


def digests(files: Mapping[str, Path], root: Path) -> dict[str, str]:
    """SHA-256 of files by their names; several are hashed at once.

    Files that did not change since an earlier run, by the cache folder `root`, are not read again
    (`remembered`): 50 GB take a minute to hash.
    """
    folder = root / "digests"
    pool = ThreadPoolExecutor(os.cpu_count())
    with _one_process(files.values(), folder), remembered(folder), pool:
        return dict(zip(files, pool.map(file_digest, files.values()), strict=True))


@contextmanager
def _one_process(files: Iterable[Path], folder: Path) -> Iterator[None]:
    paths = [path.absolute() for path in files]
    if sum(path.stat().st_size for path in paths) < LARGE:
        yield
        return
    lock = FileLock(folder / f"{key_digest(sorted(map(str, paths)))}.lock")
    # A cache that cannot be written costs time, not the run.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Memory:
    """A list of `[path, state, digest]`, one a line, later lines over earlier ones.

    Every line is appended in one write, so that processes need no lock; a damaged one is skipped.
    """

    def __init__(self, file: Path, rehash: bool) -> None:
        self.file, self.rehash = file, rehash
        self._known: dict[str, tuple[FileState, str]] = {}
        with suppress(OSError):
            for line in () if rehash else file.read_bytes().splitlines():
                with suppress(ValueError, TypeError, RecursionError):
                    path, state, digest = json.loads(line)
                    if len(digest) == 64 and _HEX.issuperset(digest):
                        self._known[path] = tuple(state), digest
            if file.stat().st_size > _LONGEST:
                known = (_line(p, *found) for p, found in self._known.items() if Path(p).exists())
                write_atomically(file, b"".join(known))

    def get(self, path: Path, state: FileState) -> str | None:
        found, digest = self._known.get(str(path), ((), ""))
        return digest if found == state else None

    def put(self, path: Path, state: FileState, digest: str) -> None:
        self._known[str(path)] = state, digest
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab", buffering=0) as file:
                file.write(_line(str(path), state, digest))


def _line(path: str, state: FileState, digest: str) -> bytes:
    # The break comes first: the line before may have been cut short by a full disk.
    return f"\n{json.dumps([path, state, digest])}".encode()


_memory: _Memory | None = None


def file_state(path: Path) -> FileState:
    """What another file in a file's place has otherwise, though a copy keeps mtime and size."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


@lru_cache(maxsize=4096)
def _file_digest(path: Path, state: FileState) -> str:
    if _memory and (known := _memory.get(path, state)):
        return known
    begun = time.time_ns()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    _, modified, changed, *_ = state
    settled = begun - max(modified, changed) > _RACY
    if _memory and settled and file_state(path) == state:
        _memory.put(path, state, digest.hexdigest())
    return digest.hexdigest()


def tree_files(path: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder by relative POSIX path, sorted by path.

    A link to a file counts as the file; one to a folder, whose files count where they are, as the
    folder's path. Nothing is read before all links are seen to stay inside. `ProgramError` for what
    is no folder: a digest of nothing would be the same for all that have none.
    """
    if not path.is_dir():
        wrong = "is a file, and a package is a folder" if path.exists() else "no such package"
        raise ProgramError(f"{path}: {wrong}; check the path.")
    files = sorted(_files(path))
    return {p.relative_to(path).as_posix(): _entry_digest(path, p) for p in files}


def _entry_digest(root: Path, path: Path) -> str:
    if not path.is_dir():
        return file_digest(path)
    target = os.path.relpath(path.resolve(), root.resolve())
    return hashlib.sha256(os.fsencode(f"link to {Path(target).as_posix()}")).hexdigest()


def tree_digest(path: Path) -> str:
    """One SHA-256 for a package: its `files_digest`; errors as of `tree_files`."""
    return files_digest(tree_files(path))


def content_digest(path: Path) -> str:
    """The `tree_digest` of a folder, the `file_digest` of a file, "missing" of neither."""
    if path.is_dir():
        return tree_digest(path)
    return file_digest(path) if path.is_file() else "missing"


def files_digest(files: Mapping[str, str]) -> str:
    """One SHA-256 for files by sorted path: of their `path digest` lines."""
    lines = "".join(f"{name} {digest}\n" for name, digest in files.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def tree_bytes(path: Path) -> int:
    """Bytes of all files below a folder; links count for nothing."""
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(f.stat().st_size for f in files if f.is_file() and not f.is_symlink())


def check_links(path: Path) -> None:
    """Check that no link in a package leads out of it; the package itself may be a link.

    Whoever reads a package follows its links: one to `/usr` or `/proc` would be read for minutes,
    and one to a private file would be part of what is shown.
    """
    for _ in _files(path):
        pass


def _files(path: Path) -> Iterator[Path]:
    """All files below a folder, and links to folders, which are not entered."""
    root = os.path.realpath(path)
    for folder, folders, names in os.walk(path):
        for entry in map(Path(folder).joinpath, (*folders, *names)):
            if entry.is_symlink():
                _check_link(entry, root)
                if entry.exists():
                    yield entry
            elif entry.is_file():
                yield entry


def _check_link(link: Path, root: str) -> None:
    target = os.path.realpath(link)
    if os.path.commonpath((root, target)) != root:
        raise ProgramError(
            f"{link}: links to {target}, outside of its package, and is not followed; put a copy "
            "in its place, of all links with: cp -RL PACKAGE COPY"
        )


def key_digest(parts: object) -> str:
    """SHA-256 of a JSON-serialisable value in canonical form: the key of a cache entry."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
