"""The folder in the cache that the processes of one run share: small files of JSON, and locks.

It helps, and nothing depends on it: on a disk that takes no more files each process finds out by
itself what it could have read here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock

from pytest_ane.make import Cache
from pytest_ane.mlprogram.atomic import write_atomically


class RunFolder:
    """The shared folder; made when first written to."""

    def __init__(self, cache: Cache, run_id: str) -> None:
        self._name = f"run-{run_id}"
        self._cache = cache
        self.folder = cache.root / "tmp" / self._name

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep others from sweeping the folder away, and remove it at the end."""
        lock = self._cache.lock(self._name)
        with suppress(OSError):
            lock.acquire()
        try:
            yield
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                lock.release()
                Path(lock.lock_file).unlink()

    def write(self, name: str, value: Any) -> None:
        """Put a JSON value in place in one step."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"{name}.json", json.dumps(value).encode())

    def read(self, prefix: str) -> list[Any]:
        """All values whose names begin with `prefix`, in the order of their names."""
        values = []
        for path in sorted(self.folder.glob(f"{escape(prefix)}*.json")):
            with suppress(OSError, ValueError):
                values.append(json.loads(path.read_text()))
        return values

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Let one process in at a time; the lock of a killed one is free."""
        with ExitStack() as stack:
            with suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(self.folder / f"{name}.lock"))
            yield
