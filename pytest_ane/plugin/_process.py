"""The processes of a run: what SIGTERM makes of them, and their progress.

Progress is a line on a terminal, nothing in pipes and under -q. A worker of xdist has no terminal:
it notes where it is in the run's folder, and the process that started it shows all in one line.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from pytest_ane.project.process import TERMINATED, on_terminate
from pytest_ane.project.progress import Progress, RunFolder, words

ID = "ane_run"
"""Key of the run's id in what a worker of xdist is given."""
_KEY = pytest.StashKey[str]()
CLEAN = pytest.StashKey[Callable[[], None]]()
"""Removes what the processes of a run shared."""


def run_id(config: pytest.Config) -> str:
    """The run's id: the same in the process that started it and in all xdist workers."""
    received = getattr(config, "workerinput", {}).get(ID)
    return str(received or config.stash.setdefault(_KEY, uuid.uuid4().hex))


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def run(config: pytest.Config) -> Generator[None, object, object]:
    """Around a run: SIGTERM ends it with exit code 143, workers of xdist as Ctrl-C."""

    def end() -> None:
        if is_worker(config):
            raise KeyboardInterrupt
        terminate_workers(config)
        pytest.exit("terminated", returncode=TERMINATED)

    try:
        with on_terminate(end):
            return (yield)
    finally:
        # All workers have ended by now: one that was ended early may have written until then.
        config.stash.get(CLEAN, lambda: None)()


def terminate_workers(config: pytest.Config) -> None:
    """Pass a signal on: xdist waits ten seconds for workers, and kills them, with their files."""
    manager = getattr(config.pluginmanager.getplugin("dsession"), "nodemanager", None)
    for gateway in manager.group if manager else ():
        if (popen := getattr(gateway._io, "popen", None)) is not None:
            popen.terminate()


_ROOM = 12
"""Fewer columns than this show nothing of use."""
_PAUSE = 0.5
"""Seconds between two looks at the workers."""
_SAVE, _RESTORE, _ERASE = "\x1b7", "\x1b8", "\x1b[K"
_FILES = "progress-"


def write_behind(config: pytest.Config, text: str, *, captured: bool) -> None:
    """Write behind what pytest has written on the terminal's current line, and return there."""
    names = "capturemanager", "terminalreporter"
    capture, reporter = map(config.pluginmanager.getplugin, names)
    if capture is None or reporter is None or config.get_verbosity() < 0:
        return
    # While output is captured, the standard streams lead to a file, never to a terminal.
    with capture.global_and_fixture_disabled() if captured else nullcontext():
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
        name = str(getattr(config, "workerinput", {}).get("workerid"))
        return WorkerProgress(total, name, run)
    return Progress(total, partial(write_behind, config, captured=True))


class Watcher(threading.Thread):
    """Shows where all workers are, in one line, while its context lasts."""

    def __init__(self, config: pytest.Config, total: int, run: RunFolder) -> None:
        super().__init__(name="ane-progress", daemon=True)
        self._total = total
        self._shared = run
        self._start = time.perf_counter()
        self._stop_now = threading.Event()
        self._show = partial(write_behind, config, captured=False)

    def run(self) -> None:
        """Look at what the workers noted, again and again."""
        shown = ""
        while not self._stop_now.wait(_PAUSE):
            seconds = time.perf_counter() - self._start
            text = line(self._shared.read(_FILES), total=self._total, seconds=seconds)
            if text or shown:
                self._show(text)
            shown = text
        if shown:
            self._show("")

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()


def line(notes: list[dict[str, Any]], *, total: int, seconds: float) -> str:
    """All workers in one line; empty where none is at work."""
    if not (now := sorted({note["now"] for note in notes if note["now"]})):
        return ""
    done = {shard: size for note in notes for shard, size in note["done"].items()}
    names, size = ", ".join(now), sum(done.values())
    return words(names, done=len(done), total=total, size=size, seconds=seconds)
