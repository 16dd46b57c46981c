"""Progress of long builds: one line on a terminal, nothing in a pipe, under -q or in a worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_WORTH_SHOWING = 1.0
"""Seconds of work before an estimate means something."""


class Progress:
    """Shards done, and the time left at the pace so far."""

    def __init__(self, config: pytest.Config, total: int) -> None:
        self._config = config
        self._total = total
        self._done = 0
        self._start = time.perf_counter()

    @contextmanager
    def building(self, shard: str) -> Iterator[None]:
        """Show that a shard's artifact is being built or looked up."""
        self._write(f"ane: {shard} ({self._done + 1} of {self._total}){self._left()}")
        try:
            yield
        finally:
            self._done += 1
            self._write("")

    def _left(self) -> str:
        spent = time.perf_counter() - self._start
        if not self._done or spent < _WORTH_SHOWING:
            return ""
        return f", about {spent / self._done * (self._total - self._done):.0f} s left"

    def _write(self, text: str) -> None:
        config = self._config
        if hasattr(config, "workerinput") or config.get_verbosity() < 0:
            return
        capture = config.pluginmanager.getplugin("capturemanager")
        stream = sys.__stderr__
        if capture is None or stream is None or not stream.isatty():
            return
        with capture.global_and_fixture_disabled():
            # Erase the line, write, and return to its beginning for what comes next.
            stream.write(f"\r\x1b[K{text}\r")
            stream.flush()
