"""Progress of builds: shards and bytes done, and the time left at the pace so far."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock

from pytest_ane.make import Cache
from pytest_ane.mlprogram.atomic import write_atomically


class RunFolder:
    """The folder of the processes of a run, made when first written to; nothing depends on it."""

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
        """Write a JSON value atomically."""
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


_WORTH_SHOWING = 1.0
"""Seconds of work before an estimate means something."""
_NAMED = 4
"""Shards at workers that a line names; of more it tells their number."""


class Progress:
    """Counts shards that are ready, and shows what is at work in one changing line."""

    def __init__(self, total: int = 0, show: Callable[[str], None] = lambda text: None) -> None:
        self.done: dict[str, int] = {}
        self._total = total
        self._show = show
        self._start = time.perf_counter()
        self._building = ""

    @contextmanager
    def building(self, shard: str) -> Iterator[Callable[[int], None]]:
        """Show that a package is being built or looked up; yields what takes its size in bytes."""
        with self.showing(self._words(shard)):
            self._building = shard
            try:
                yield lambda size: self.done.update({shard: size})
            finally:
                self._building = ""

    def step(self, shard: str, doing: str) -> None:
        """Show what is done for the shard that is being built: `converting`."""
        if shard == self._building:  # Also when a cause is searched a shard is built, for that.
            self._show(self._words(f"{shard}: {doing}"))

    def _words(self, shard: str) -> str:
        """What is shown of a shard at work; workers of xdist show its name alone."""
        seconds, size = time.perf_counter() - self._start, sum(self.done.values())
        return words(shard, done=len(self.done), total=self._total, size=size, seconds=seconds)

    @contextmanager
    def showing(self, text: str) -> Iterator[None]:
        """Show work other than building."""
        self._show(text)
        try:
            yield
        finally:
            self._show("")

    def elsewhere(self, shards: Sequence[str], done: int) -> None:
        """Show the shards that other machines have, and how many they have done."""
        seconds = time.perf_counter() - self._start
        names = ", ".join(shards) if len(shards) <= _NAMED else f"{len(shards)} shards"
        parts = ", ".join([f"{done} of {self._total} done", *_left(done, self._total, seconds)])
        self._show(f"{names} at workers ({parts})" if shards else "")


def words(shard: str, *, done: int, total: int, size: int, seconds: float) -> str:
    """`smollm2:L02 (3 of 34, 6.4 MB done, about 40 s left)`."""
    parts = [f"{min(done + 1, total)} of {total}"]
    if size:
        parts.append(f"{size / 1e6:.1f} MB done")
    parts += _left(done, total, seconds)
    return f"{shard} ({', '.join(parts)})"


def _left(done: int, total: int, seconds: float) -> list[str]:
    if not 0 < done < total or seconds < _WORTH_SHOWING:
        return []
    return [f"about {seconds / done * (total - done):.0f} s left"]
