"""The content-addressed cache: whatever takes long is done once, by one process, and kept whole.

An entry is a folder `<root>/<kind>/<key>`. It is made in `<root>/tmp` and moved into place with
one rename, so that an entry that exists is complete, whatever killed the process before.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from pytest_ane.build.scratch import leftovers, scratch, temporary_folder
from pytest_ane.build.slots import Slots
from pytest_ane.core.digests import tree_bytes
from pytest_ane.core.errors import BuildError, CacheError

KINDS = ("artifacts", "compiled", "recordings")

_WRITER = "[MIL FileWriter]"
"""How coremltools' writer of weights begins when the system refuses to write; it is no OSError."""
_NUMBER = re.compile(r"^\[Errno \d+\] ")


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
        CacheError: the folder cannot be made or written.
    """

    def __init__(self, root: Path | None = None, builds: int | None = None) -> None:
        self.root = (root or default_root()).absolute()
        self.slots = Slots(self.root / "locks", builds) if builds else None
        try:
            for name in (*KINDS, "locks", "tmp"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            probe = self.root / "tmp" / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(
                f"The cache folder {self.root} cannot be written ({error.strerror}); "
                "choose another with --ane-cache=DIR."
            ) from error

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is or would be."""
        return self.root / kind / key

    def get(self, kind: str, key: str) -> Path | None:
        """A finished entry's folder, or None; a hit counts as use for `prune`."""
        path = self.path(kind, key)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

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
                if (found := self.get(kind, key)) is not None:
                    return found
                with self._workspace(kind, key) as folder, scratch(self._scratch(kind, key)):
                    make(folder)
                    folder.replace(self.path(kind, key))
        return self.path(kind, key)

    def entries(self) -> list[Entry]:
        """All finished entries, least recently used first."""
        found = [
            Entry(kind, path.name, path, tree_bytes(path), path.stat().st_mtime)
            for kind in KINDS
            for path in (self.root / kind).iterdir()
            if path.is_dir()
        ]
        return sorted(found, key=lambda entry: entry.used)

    def remove(self, entry: Entry) -> None:
        """Delete an entry; renamed away first, so that no reader sees half of it."""
        doomed = self.root / "tmp" / f"{entry.kind}-{entry.key}.removed-{os.getpid()}"
        with self.lock(f"{entry.kind}-{entry.key}"):
            entry.path.replace(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def lock(self, name: str) -> FileLock:
        """A lock between processes, free again when its holder is gone, however it went."""
        return FileLock(self.root / "locks" / f"{name}.lock")

    def sweep(self) -> None:
        """Delete what killed processes left, here and in the temporary folder.

        What another process is making stays.
        """
        named = [(left.name.partition(".")[0], left) for left in (self.root / "tmp").iterdir()]
        mark = self._scratch()
        for left in leftovers(mark):
            named.append((left.name.removeprefix(f"{mark}-").rpartition("-")[0], left))
        for name, left in named:
            with suppress(Timeout), self.lock(name).acquire(timeout=0):
                shutil.rmtree(left, ignore_errors=True)

    def _slot(self) -> AbstractContextManager[None]:
        return self.slots.one() if self.slots else nullcontext()

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
