"""The content-addressed cache: whatever takes long is done once, by one process, and kept whole.

An entry is a folder `<root>/<kind>/<key>`. It is made and sealed in `<root>/tmp` and moved into
place with one rename, so that an entry that exists is complete, whatever killed the process.
Whenever an entry is used it is compared with its seal (`shared_store.py`). Only what has the form
of a name made here is ever deleted (`disk.py`).
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from pytest_ane.make.disk import (
    ENTRY,
    KEY,
    KINDS,
    RUN,
    TAG,
    TAG_TEXT,
    USER,
    Semaphore,
    is_tagged,
    leftovers,
    own_paths,
    require_cache,
    scratch,
    temporary_folder,
)
from pytest_ane.make.shared_store import KINDS as SHARED
from pytest_ane.make.shared_store import SharedStore, damage, write_seal
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import BuildError, CacheError, DiskError

_WRITER = "[MIL FileWriter]"
"""How coremltools' writer of weights begins when the system refuses to write; it is no OSError."""
_NUMBER = re.compile(r"^\[Errno \d+\] ")
_MARGIN = 60 * 10**9
"""Nanoseconds: clocks of file systems may be behind the machine's."""
_WORDS = {
    "artifacts": "package",
    "budgets": "error budget",
    "compiled": "compiled model",
    "recordings": "recorded reference",
}
"""What messages call an entry of each kind."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors that no free space helps against."""


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

    At most `builds` entries are made at once by processes that share the folder. `notify` receives
    a sentence on each entry that was damaged or edited; `store` is asked for an entry before it is
    made, and offered what was made; of more than `max_size` bytes those not in use go.

    `unwritable` is why the folder can only be read, else empty; `used` are entries that this object
    gave or made. `CacheError` where it holds other content and no tag, or cannot be made.
    """

    def __init__(
        self,
        root: Path | None = None,
        builds: int | None = None,
        notify: Callable[[str], None] | None = None,
        store: SharedStore | None = None,
        max_size: int | None = None,
    ) -> None:
        self.root = (root or default_root()).absolute()
        self.notify = notify or to_stderr
        self.store, self.max_size = store, max_size
        self.unwritable = ""
        self.slots = Semaphore(self.root / "locks", builds) if builds else None
        self._user: FileLock | None = None
        self.used: set[Path] = set()
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
            if not is_tagged(self.root):
                raise CacheError(
                    f"The cache folder {self.root} cannot be written ({error.strerror}); "
                    "choose another with --ane-cache=DIR."
                ) from error
            self.unwritable = error.strerror or str(error)

    def path(self, kind: str, key: str) -> Path:
        """Where an entry is or would be."""
        assert kind in KINDS, kind
        assert re.fullmatch(KEY, key), key
        return self.root / kind / key

    def get(self, kind: str, key: str, subject: str = "") -> Path | None:
        """A finished entry's folder, or None; `prune` keeps it until this process ends.

        An entry that differs from its seal is none, which is said; `subject` is whose it is.
        `CacheError` where it cannot be read.
        """
        path = self.path(kind, key)
        if (wrong := self._use(path)) == "":
            return path
        if wrong:
            self.notify(f"{self._sentence(path, wrong, subject)}; it is not used.")
        elif self.store is not None and not self.unwritable:
            with self._disk_errors(), self.lock(_name(path)):
                if self._use(path, locked=True) == "" or self._fetch(path, subject):
                    return path
        return None

    def get_or_make(
        self,
        kind: str,
        key: str,
        make: Callable[[Path], None],
        subject: str = "",
        *,
        shared: bool = True,
    ) -> Path:
        """A finished entry, made by `make(folder)` if there is none; two processes make it once.

        An entry that differs from its seal is made again, which is said; `subject` is whose it is.
        For what another machine has made, the store is not asked (`shared`). `BuildError` where the
        disk is full or failing; `CacheError` where the entry cannot be read, or not be written.
        """
        path, entry = self.path(kind, key), (kind, key)
        with self._disk_errors():
            if (wrong := self._use(path)) == "":
                return path
            if self.unwritable:
                raise CacheError(
                    f"{self._sentence(path, wrong, subject)}, and the cache folder {self.root} "
                    f"cannot be written ({self.unwritable}); choose another with --ane-cache=DIR."
                )
            # The slot first: who waits for an entry may hold one, who makes it has one already.
            with self.slots.held() if self.slots else nullcontext(), self.lock(_name(path)):
                if (wrong := self._use(path, locked=True)) == "":
                    return path
                if wrong:
                    self._discard(path, wrong, subject)
                if not (shared and self._fetch(path, subject)):
                    with self._workspace(*entry) as folder, scratch(self._scratch(*entry)):
                        make(folder)
                        write_seal(folder, *entry)
                        folder.replace(path)
                    self._note_use(path)
                    if shared:
                        self._offer(path)
            if self.max_size is not None:
                for surplus in self.surplus(self.max_size):
                    with suppress(OSError):
                        self.remove(surplus)
            return path

    def _fetch(self, path: Path, subject: str) -> bool:
        """Take an entry from the store, under its lock; whether the store had it whole."""
        kind, key = path.parent.name, path.name
        if self.store is None or kind not in SHARED:
            return False
        with self._workspace(kind, key) as folder:
            if entry := self.store.fetch(kind, key, folder, subject):
                entry.replace(path)
                self._note_use(path)
        return entry is not None

    def _offer(self, path: Path) -> bool:
        """Give the store an entry that was made here, under its lock; whether it has it now."""
        if self.store is None or path.parent.name not in SHARED:
            return False
        with self._workspace(path.parent.name, path.name) as folder:
            return self.store.offer(path, folder)

    def push(self, entry: Entry) -> bool:
        """Offer the store an entry that lies here; whether the store has it now as it is here."""
        with self.lock(_name(entry.path)):
            if wrong := self._use(entry.path, locked=True):
                self.notify(f"{self._sentence(entry.path, wrong, '')}; it is not stored.")
            return wrong == "" and self._offer(entry.path)

    def entries(self) -> list[Entry]:
        """All finished entries, least recently used first."""
        found = [
            Entry(kind, path.name, path, tree_bytes(path), path.stat().st_mtime)
            for kind in KINDS
            for path in self.folders(kind)
        ]
        return sorted(found, key=lambda entry: entry.used)

    def folders(self, kind: str) -> list[Path]:
        """All finished entries of a kind."""
        return [path for path in own_paths(self.root, kind) if path.is_dir()]

    def surplus(self, most: int) -> list[Entry]:
        """Entries beyond so many bytes, least recently used first, that no process uses."""
        entries, since = self.entries(), self.in_use_since()
        held, surplus = sum(entry.size for entry in entries), []
        for entry in entries:
            if held > most and entry.used < since:
                surplus.append(entry)
                held -= entry.size
        return surplus

    def remove(self, entry: Entry) -> bool:
        """Delete an entry, unless it was used since it was listed; whether it is gone."""
        with self.lock(_name(entry.path)):
            if not entry.path.is_dir():
                return True
            if entry.path.stat().st_mtime != entry.used:
                return False
            self._remove(entry.path)
        return True

    def in_use_since(self) -> float:
        """When the first process that uses entries now began to (seconds of the epoch), or inf."""
        held = (re.fullmatch(USER, lock.stem) for lock in own_paths(self.root, "locks"))
        starts = [match for match in held if match and not self._is_free(match[0])]
        return min((int(match["start"]) / 1e9 for match in starts), default=math.inf)

    def lock(self, name: str) -> FileLock:
        """A lock between processes, free again when its holder is gone, however it went."""
        return FileLock(self.root / "locks" / f"{name}.lock")

    def sweep(self) -> None:
        """Delete what killed processes left; what may not be deleted stays."""
        if self.unwritable:
            return
        mark = self._scratch()
        form = rf"{re.escape(mark)}-{ENTRY}"
        named = [(left.name.partition(".")[0], left) for left in own_paths(self.root, "tmp")]
        for left in leftovers(form):
            named.append((left.name.removeprefix(f"{mark}-").rpartition("-")[0], left))
        for name, left in named:
            if not name:  # A test of whether the folder can be written.
                with suppress(OSError):
                    left.unlink()
                continue
            with suppress(OSError), self.lock(name).acquire(timeout=0):
                shutil.rmtree(left, ignore_errors=True)
        for lock in own_paths(self.root, "locks"):
            if re.fullmatch(f"{RUN}|{USER}", lock.stem) and self._is_free(lock.stem):
                with suppress(OSError):
                    lock.unlink()

    def _use(self, path: Path, *, locked: bool = False) -> str | None:
        """Use an entry: how it differs from its seal, empty if it does not; None without one."""
        try:
            if not path.is_dir():
                return None
            with ExitStack() as stack:
                if not locked:
                    with suppress(OSError):  # A shared cache may have locks of another user's.
                        stack.enter_context(self.lock(_name(path)))
                self._note_use(path)
            return damage(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CacheError(
                f"{path} cannot be read ({_said(error)}); see that it may be read, or choose "
                "another folder with --ane-cache=DIR."
            ) from error

    def _note_use(self, path: Path) -> None:
        """Note that this process uses an entry, for `prune`; under the entry's lock."""
        self.used.add(path)
        if self._user is None:
            start = time.time_ns() - _MARGIN
            self._user = self.lock(f"use-{start}-{os.getpid()}")
            with suppress(OSError):
                self._user.acquire()
        try:
            os.utime(path)
        except FileNotFoundError:
            raise
        except OSError:  # Another user's, or in a folder that cannot be written.
            pass

    def _discard(self, path: Path, wrong: str, subject: str) -> None:
        """Remove an entry that differs from its seal, under its lock, and say so."""
        sentence = self._sentence(path, wrong, subject)
        try:
            self._remove(path)
        except OSError as error:
            raise CacheError(
                f"{sentence}, and cannot be replaced ({error.strerror}); delete {path}, or choose "
                "another folder with --ane-cache=DIR."
            ) from error
        self.notify(f"{sentence}; it is made again.")

    def _remove(self, path: Path) -> None:
        name = f"{_name(path)}.removed-{os.getpid()}"
        shutil.rmtree(path.replace(self.root / "tmp" / name), ignore_errors=True)

    def _sentence(self, path: Path, wrong: str | None, subject: str) -> str:
        kind, whose = path.parent.name, f"{subject}: its" if subject else "A"
        if wrong is None:
            return f"{whose} {_WORDS[kind]} is not in the cache"
        return (
            f"{whose} {_WORDS[kind]} in the cache ({kind}/{path.name[:16]}) was damaged or edited: "
            f"{wrong}"
        )

    def _is_free(self, name: str) -> bool:
        try:
            with self.lock(name).acquire(timeout=0):
                return True
        except OSError:  # Held, or another user's.
            return False

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
        except (OSError, BuildError) as error:
            said = _said(error) if isinstance(error, OSError) else str(error).rstrip(".")
            failed = f"Building into {self.root} failed: {said}"
            if isinstance(error, OSError):
                if error.errno in _REFUSED:
                    raise BuildError(
                        f"{failed}; see that it may be read and written, or choose other folders "
                        "with --ane-cache=DIR and TMPDIR."
                    ) from error
            elif _WRITER not in said:
                raise
            temporary = temporary_folder()
            free, room = (shutil.disk_usage(path).free / 1e9 for path in (self.root, temporary))
            raise DiskError(
                f"{failed} ({free:.1f} GB free there, {room:.1f} GB in the temporary folder "
                f"{temporary}); free some space (pytest-ane cache prune), or choose other folders "
                "with --ane-cache=DIR and TMPDIR. What was finished before is kept."
            ) from error


def to_stderr(text: str) -> None:
    """Write a line where it spoils no output."""
    print(text, file=sys.stderr)


def default_root() -> Path:
    """The user's own cache folder."""
    return user_cache_path("pytest-ane")


def _name(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


def _said(error: OSError) -> str:
    """`No space left on device: /some/file`; the first of the errors that `shutil` collected."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        _, target, why = error.args[0][0]
        return f"{_NUMBER.sub('', str(why)).partition(': ')[0]}: {target}"
    if error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
