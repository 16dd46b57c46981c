"""Progress of long builds: a few words on a terminal; nothing in pipes and under -q.

A worker of xdist has no terminal: it notes where it is in the run's folder, and the process that
started it shows all workers in one line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from pytest_ane.plugin.run import Run, is_worker, worker

_WORTH_SHOWING = 1.0
"""Seconds of work before an estimate means something."""
_ROOM = 12
"""Fewer columns than this show nothing of use."""
_PAUSE = 0.5
"""Seconds between two looks at the workers."""
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"
_FILES = "progress-"


def words(shard: str, *, done: int, total: int, size: int, seconds: float) -> str:
    """`smollm2:L02 (3 of 34, 6.4 MB done, about 40 s left)`.

    Args:
        shard: the one at work, or several.
        done: shards done so far.
        total: shards in all.
        size: bytes of those done.
        seconds: time they took.
    """
    parts = [f"{min(done + 1, total)} of {total}"]
    if size:
        parts.append(f"{size / 1e6:.1f} MB done")
    if 0 < done < total and seconds >= _WORTH_SHOWING:
        parts.append(f"about {seconds / done * (total - done):.0f} s left")
    return f"{shard} ({', '.join(parts)})"


class Screen:
    """The rest of the terminal's current line."""

    def __init__(self, config: pytest.Config, *, captured: bool) -> None:
        self._config = config
        self._captured = captured

    def write(self, text: str) -> None:
        """Write behind what pytest has written on this line, and return there."""
        plugins = self._config.pluginmanager
        capture, reporter = (
            plugins.getplugin("capturemanager"),
            plugins.getplugin("terminalreporter"),
        )
        if capture is None or reporter is None or self._config.get_verbosity() < 0:
            return
        # While output is captured, the standard streams lead to a file, never to a terminal.
        with capture.global_and_fixture_disabled() if self._captured else nullcontext():
            stream, writer = sys.__stdout__, reporter._tw
            room = writer.fullwidth - writer.width_of_current_line - 2
            if stream is not None and stream.isatty() and room >= _ROOM:
                stream.write(f"{_SAVE} {text[:room]}{_ERASE}{_RESTORE}")
                stream.flush()


class Progress:
    """Shards and bytes done, and the time left at the pace so far."""

    def __init__(self, config: pytest.Config, total: int, run: Callable[[], Run]) -> None:
        self._total = total
        self._run = run
        self._done: dict[str, int] = {}
        self._start = time.perf_counter()
        self._worker = worker(config) if is_worker(config) else None
        self._screen = Screen(config, captured=True)

    @contextmanager
    def building(self, shard: str) -> Iterator[Callable[[int], None]]:
        """Show that an artifact is being built or looked up; yields what takes its bytes."""
        self._show(shard)
        try:
            yield lambda size: self._done.update({shard: size})
        finally:
            self._show("")

    @contextmanager
    def showing(self, text: str) -> Iterator[None]:
        """Show what is going on, other than building."""
        self._show(text, counted=False)
        try:
            yield
        finally:
            self._show("")

    def _show(self, text: str, counted: bool = True) -> None:
        if self._worker is not None:
            self._run().write(f"{_FILES}{self._worker}", {"now": text, "done": self._done})
        elif text and counted:
            seconds = time.perf_counter() - self._start
            size, done = sum(self._done.values()), len(self._done)
            self._screen.write(
                words(text, done=done, total=self._total, size=size, seconds=seconds)
            )
        else:
            self._screen.write(text)


class Watcher(threading.Thread):
    """Shows where all workers are, in one line, until stopped."""

    def __init__(self, config: pytest.Config, total: int, run: Run) -> None:
        super().__init__(name="ane-progress", daemon=True)
        self._total = total
        self._shared = run
        self._start = time.perf_counter()
        self._stop_now = threading.Event()
        self._screen = Screen(config, captured=False)

    def run(self) -> None:
        """Look at what the workers noted, again and again."""
        shown = ""
        while not self._stop_now.wait(_PAUSE):
            seconds = time.perf_counter() - self._start
            text = line(self._shared.read(_FILES), total=self._total, seconds=seconds)
            if text or shown:
                self._screen.write(text)
            shown = text
        if shown:
            self._screen.write("")

    def stop(self) -> None:
        """Erase the line and end."""
        self._stop_now.set()
        self.join()


def line(notes: list[dict[str, Any]], *, total: int, seconds: float) -> str:
    """All workers in one line; empty where none is at work."""
    now = sorted({note["now"] for note in notes if note["now"]})
    if not now:
        return ""
    done = {shard: size for note in notes for shard, size in note["done"].items()}
    return words(
        ", ".join(now), done=len(done), total=total, size=sum(done.values()), seconds=seconds
    )
