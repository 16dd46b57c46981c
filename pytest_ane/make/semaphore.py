"""How many builds run at once, over all processes that share a cache: a semaphore of lock files.

A lock is the system's: when its process is killed, it is free again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_ane.mlprogram.memory import available_memory

BYTES_PER_BUILD = 3 * 10**9
"""Memory set aside for a build: converting 95 M to 202 M weights takes up to 2.7 GB at the peak."""

_POLL = 0.05


class Semaphore:
    """A re-entrant semaphore across processes with `count` permits."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self._folder = folder
        self._inside = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for a permit and hold it; a process that holds one goes on at once."""
        if self._inside:
            yield
            return
        lock = self._free()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            lock.release()

    def _free(self) -> FileLock:
        while True:
            for number in range(self.count):
                lock = FileLock(self._folder / f"slot-{number}.lock")
                with suppress(Timeout):
                    lock.acquire(timeout=0)
                    return lock
            time.sleep(_POLL)


def default_builds() -> int:
    """Builds to run at once: as many as memory holds at 3 GB each, from one to one a core."""
    return max(1, min(os.cpu_count() or 1, available_memory() // BYTES_PER_BUILD))
