"""Progress of long builds: a line on a terminal; nothing in pipes and under -q.

A worker of xdist has no terminal: it notes where it is in the run's folder, and the process that
started it shows all workers in one line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from pytest_ane.plugin._process import is_worker, worker
from pytest_ane.project.progress import Progress, RunFolder, words

_ROOM = 12
"""Fewer columns than this show nothing of use."""
_PAUSE = 0.5
"""Seconds between two looks at the workers."""
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"
_FILES = "progress-"


class Screen:
    """The rest of the terminal's current line."""

    def __init__(self, config: pytest.Config, *, captured: bool) -> None:
        self._config = config
        self._captured = captured

    def write(self, text: str) -> None:
        """Write behind what pytest has written on this line, and return there."""
        plugins = self._config.pluginmanager
        capture, reporter = map(plugins.getplugin, ("capturemanager", "terminalreporter"))
        if capture is None or reporter is None or self._config.get_verbosity() < 0:
            return
        # While output is captured, the standard streams lead to a file, never to a terminal.
        with capture.global_and_fixture_disabled() if self._captured else nullcontext():
            stream, writer = sys.__stdout__, reporter._tw
            room = writer.fullwidth - writer.width_of_current_line - 2
            if stream is not None and stream.isatty() and room >= _ROOM:
                stream.write(f"{_SAVE} {text[:room]}{_ERASE}{_RESTORE}")
                stream.flush()


class WorkerProgress(Progress):
    """Progress of a worker of xdist, noted in the run's folder for the process that started it."""

    def __init__(self, total: int, worker: str, run: Callable[[], RunFolder]) -> None:
        super().__init__(total, self._note)
        self._worker = worker
        self._run = run

    def _words(self, shard: str) -> str:
        return shard

    def _note(self, text: str) -> None:
        self._run().write(f"{_FILES}{self._worker}", {"now": text, "done": self.done})


def progress_of(config: pytest.Config, total: int, run: Callable[[], RunFolder]) -> Progress:
    """The progress of this process: on the terminal, or noted for the process that has one."""
    if is_worker(config):
        return WorkerProgress(total, worker(config), run)
    return Progress(total, Screen(config, captured=True).write)


class Watcher(threading.Thread):
    """Shows where all workers are, in one line, while its context lasts."""

    def __init__(self, config: pytest.Config, total: int, run: RunFolder) -> None:
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

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()


def line(notes: list[dict[str, Any]], *, total: int, seconds: float) -> str:
    """All workers in one line; empty where none is at work."""
    now = sorted({note["now"] for note in notes if note["now"]})
    if not now:
        return ""
    done = {shard: size for note in notes for shard, size in note["done"].items()}
    names, size = ", ".join(now), sum(done.values())
    return words(names, done=len(done), total=total, size=size, seconds=seconds)
