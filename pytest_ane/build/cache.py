"""The content-addressed cache: whatever takes long is done once, by one process, and kept whole.

An entry is a folder `<root>/<kind>/<key>`. It is made in `<root>/tmp` and moved into place with
one rename, so that an entry that exists is complete, whatever killed the process before. Only what
has the form of a name made here is ever deleted (`folder.py`).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from pytest_ane.build.folder import (
    ENTRY,
    KEY,
    KINDS,
    RUN,
    TAG,
    TAG_TEXT,
    USER,
    is_tagged,
    own,
    require_cache,
)
from pytest_ane.build.scratch import leftovers, scratch, temporary_folder
from pytest_ane.build.semaphore import Semaphore
from pytest_ane.core.digests import tree_bytes
from pytest_ane.core.errors import BuildError, CacheError

_WRITER = "[MIL FileWriter]"
"""How coremltools' writer of weights begins when the system refuses to write; it is no OSError."""
_NUMBER = re.compile(r"^\[Errno \d+\] ")
_MARGIN = 60 * 10**9
"""Nanoseconds: clocks of file systems may be behind the machine's."""


@dataclass(frozen=True)
class Entry:
    """One entry as `pytest-ane cache list` shows it: size in bytes, last use in epoch seconds."""

    kind: str
    key: str
    path: Path
    size: int
    used: float


class Cache:
    """A cache folder, the user's own by default.

    Args:
        root: the folder.
        builds: how many entries processes that share the folder make at once; `None` for any.

    Raises:
        CacheError: the folder cannot be made or written, or holds other content and no tag.
    """

    def __init__(self, root: Path | None = None, builds: int | None = None) -> None:
        self.root = (root or default_root()).absolute()
        self.slots = Semaphore(self.root / "locks", builds) if builds else None
        self._user: FileLock | None = None
        require_cache(self.root)
        try:
            for name in (*KINDS, "locks", "tmp"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            probe = self.root / "tmp" / f".write-{os.getpid()}"
            probe.touch()
            if not is_tagged(self.root):
                probe.write_text(TAG_TEXT)
                with suppress(FileNotFoundError):  # Another process swept it away.
                    probe.replace(self.root / TAG)
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(
                f"The cache folder {self.root} cannot be written ({error.strerror}); "
                "choose another with --ane-cache=DIR."
            ) from error

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is or would be."""
        assert kind in KINDS, kind
        assert re.fullmatch(KEY, key), key
        return self.root / kind / key

    def get(self, kind: str, key: str) -> Path | None:
        """A finished entry's folder, or None; `prune` keeps it until this process ends."""
        path = self.path(kind, key)
        if not path.is_dir():
            return None
        with ExitStack() as stack:
            with suppress(OSError):  # A shared cache may have locks of another user's.
                stack.enter_context(self.lock(f"{kind}-{key}"))
            try:
                return self._use(path)
            except FileNotFoundError:
                return None

    def get_or_make(self, kind: str, key: str, make: Callable[[Path], None]) -> Path:
        """A finished entry, made by `make(folder)` if there is none; two processes make it once.

        Raises:
            BuildError: the disk is full or failing; the unfinished entry is removed.
        """
        with self._disk_errors():
            if (found := self.get(kind, key)) is not None:
                return found
            # The slot first: who waits for an entry may hold one, who makes it has one already.
            with self._slot(), self.lock(f"{kind}-{key}"):
                path = self.path(kind, key)
                if path.is_dir():
                    return self._use(path)
                with self._workspace(kind, key) as folder, scratch(self._scratch(kind, key)):
                    make(folder)
                    folder.replace(path)
                return self._use(path)

    def entries(self) -> list[Entry]:
        """All finished entries, least recently used first."""
        found = [
            Entry(kind, path.name, path, tree_bytes(path), path.stat().st_mtime)
            for kind in KINDS
            for path in self.folders(kind)
        ]
        return sorted(found, key=lambda entry: entry.used)

    def folders(self, kind: str) -> list[Path]:
        """The folders of all finished entries of a kind."""
        return [path for path in own(self.root, kind) if path.is_dir()]

    def remove(self, entry: Entry) -> bool:
        """Delete an entry, unless it was used since it was listed; whether it is gone.

        It is renamed away first, so that no reader sees half of it.
        """
        doomed = self.root / "tmp" / f"{entry.kind}-{entry.key}.removed-{os.getpid()}"
        with self.lock(f"{entry.kind}-{entry.key}"):
            if not entry.path.is_dir():
                return True
            if entry.path.stat().st_mtime != entry.used:
                return False
            entry.path.replace(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        return True

    def in_use_since(self) -> float:
        """When the first of the processes that use entries now began to; infinity without any.

        An entry that one of them uses was last used after that (seconds of the epoch).
        """
        held = (re.fullmatch(USER, lock.stem) for lock in own(self.root, "locks"))
        starts = [match for match in held if match and not self._is_free(match[0])]
        return min((int(match["start"]) / 1e9 for match in starts), default=math.inf)

    def lock(self, name: str) -> FileLock:
        """A lock between processes, free again when its holder is gone, however it went."""
        return FileLock(self.root / "locks" / f"{name}.lock")

    def sweep(self) -> None:
        """Delete what killed processes left, here and in the temporary folder.

        What another process is making stays.
        """
        mark = self._scratch()
        form = rf"{re.escape(mark)}-{ENTRY}"
        named = [(left.name.partition(".")[0], left) for left in own(self.root, "tmp")]
        for left in leftovers(form):
            named.append((left.name.removeprefix(f"{mark}-").rpartition("-")[0], left))
        for name, left in named:
            if not name:  # A test of whether the folder can be written.
                with suppress(OSError):
                    left.unlink()
                continue
            with suppress(Timeout), self.lock(name).acquire(timeout=0):
                shutil.rmtree(left, ignore_errors=True)
        for lock in own(self.root, "locks"):
            if re.fullmatch(f"{RUN}|{USER}", lock.stem) and self._is_free(lock.stem):
                with suppress(OSError):
                    lock.unlink()

    def _use(self, path: Path) -> Path:
        """Note that this process uses an entry, for `prune`; under the entry's lock."""
        if self._user is None:
            start = time.time_ns() - _MARGIN
            self._user = self.lock(f"use-{start}-{os.getpid()}")
            with suppress(OSError):
                self._user.acquire()
        os.utime(path)
        return path

    def _is_free(self, name: str) -> bool:
        """Whether nobody holds a lock."""
        try:
            with self.lock(name).acquire(timeout=0):
                return True
        except OSError:  # Held, or another user's.
            return False

    def _slot(self) -> AbstractContextManager[None]:
        return self.slots.held() if self.slots else nullcontext()

    def _scratch(self, *entry: str) -> str:
        """What folders of temporary files are called: by this cache folder, then by the entry."""
        own = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return "-".join(("pytest-ane", own, *entry))

    @contextmanager
    def _workspace(self, kind: str, key: str) -> Iterator[Path]:
        """A fresh folder for an entry under its lock; leftovers of a killed process go first."""
        folder = self.root / "tmp" / f"{kind}-{key}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Say what the system said, and where.

        The converter also writes to the temporary folder, and copies with `shutil`, whose errors
        carry no number; so all of them are caught alike.
        """
        try:
            yield
        except OSError as error:
            raise self._disk_error(_said(error)) from error
        except BuildError as error:
            if _WRITER not in str(error):
                raise
            raise self._disk_error(str(error).rstrip(".")) from error

    def _disk_error(self, said: str) -> BuildError:
        temporary = temporary_folder()
        free, room = (shutil.disk_usage(path).free / 1e9 for path in (self.root, temporary))
        return BuildError(
            f"Building into {self.root} failed: {said} ({free:.1f} GB free there, {room:.1f} GB in "
            f"the temporary folder {temporary}); free some space (pytest-ane cache prune), or "
            "choose other folders with --ane-cache=DIR and TMPDIR. What was finished before is "
            "kept."
        )


def default_root() -> Path:
    """The user's own cache folder."""
    return user_cache_path("pytest-ane")


def _said(error: OSError) -> str:
    """`No space left on device: /some/file`; the first of the errors that `shutil` collected."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        _, target, why = error.args[0][0]
        return f"{_NUMBER.sub('', str(why)).partition(': ')[0]}: {target}"
    if error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
