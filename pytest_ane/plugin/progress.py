"""Progress of long builds: a few words on a terminal; nothing in pipes, under -q or in workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

_WORTH_SHOWING = 1.0
"""Seconds of work before an estimate means something."""
_ROOM = 12
"""Fewer columns than this show nothing of use."""
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"


def words(shard: str, *, done: int, total: int, size: int, seconds: float) -> str:
    """`smollm2:L02 (3 of 34, 6.4 MB done, about 40 s left)`.

    Args:
        shard: the one at work.
        done: shards done so far.
        total: shards in all.
        size: bytes of those done.
        seconds: time they took.
    """
    parts = [f"{done + 1} of {total}"]
    if size:
        parts.append(f"{size / 1e6:.1f} MB done")
    if done and seconds >= _WORTH_SHOWING:
        parts.append(f"about {seconds / done * (total - done):.0f} s left")
    return f"{shard} ({', '.join(parts)})"


class Progress:
    """Shards and bytes done, and the time left at the pace so far."""

    def __init__(self, config: pytest.Config, total: int) -> None:
        self._config = config
        self._total = total
        self._done = 0
        self._size = 0
        self._start = time.perf_counter()

    @contextmanager
    def building(self, shard: str) -> Iterator[Callable[[int], None]]:
        """Show that an artifact is being built or looked up; yields what takes its bytes."""
        seconds = time.perf_counter() - self._start
        self._write(
            words(shard, done=self._done, total=self._total, size=self._size, seconds=seconds)
        )
        try:
            yield self._add
        finally:
            self._write("")

    def _add(self, size: int) -> None:
        self._done += 1
        self._size += size

    def _write(self, text: str) -> None:
        """Write behind what pytest has written on this line, and return there."""
        plugins = self._config.pluginmanager
        capture, reporter = (
            plugins.getplugin("capturemanager"),
            plugins.getplugin("terminalreporter"),
        )
        if capture is None or reporter is None or self._config.get_verbosity() < 0:
            return
        # While output is captured, the standard streams lead to a file, never to a terminal.
        with capture.global_and_fixture_disabled():
            stream, writer = sys.__stdout__, reporter._tw
            room = writer.fullwidth - writer.width_of_current_line - 2
            if stream is not None and stream.isatty() and room >= _ROOM:
                stream.write(f"{_SAVE} {text[:room]}{_ERASE}{_RESTORE}")
                stream.flush()
