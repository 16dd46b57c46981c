"""The processes of a run, with xdist and without; one's standard output may be closed or full."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from pytest_ane.project.process import TERMINATED, on_terminate

_ID = "ane_run"
_KEY = pytest.StashKey[str]()
CLEAN = pytest.StashKey[Callable[[], None]]()
"""Removes what the processes of a run shared."""


def run_id(config: pytest.Config) -> str:
    """The run's id: the same in the process that started it and in all xdist workers."""
    received = getattr(config, "workerinput", {}).get(_ID)
    return str(received or config.stash.setdefault(_KEY, uuid.uuid4().hex))


def send_id(workerinput: dict[str, Any], config: pytest.Config) -> None:
    """Give a worker that is about to start the run's id."""
    workerinput[_ID] = run_id(config)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


def worker(config: pytest.Config) -> str:
    """`gw0`, or `main` without xdist."""
    return str(getattr(config, "workerinput", {}).get("workerid", "main"))


def provide_output() -> None:
    """Give pytest a standard output where it was closed: it fails without one."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end


def run(config: pytest.Config) -> Generator[None, object, object]:
    """Around a whole run: SIGTERM ends it with exit code 143, a full disk with a sentence and 3.

    A worker of xdist ends as by Ctrl-C, which is how xdist knows that its tests were not run.
    """

    def end() -> None:
        if is_worker(config):
            raise KeyboardInterrupt
        _terminate_workers(config)
        pytest.exit("terminated", returncode=TERMINATED)

    try:
        with on_terminate(end):
            result = yield
        # What is buffered would fail at exit, with a traceback.
        sys.stdout.flush()
        return result
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not _of_output(error.__traceback__):
            raise
        problem = error
    finally:
        # All workers have ended by now: one that was ended early may have written until then.
        config.stash.get(CLEAN, lambda: None)()
    # What is left goes nowhere, so that the flush at exit does not fail too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if sys.stderr is not None:
        sentence = f"ane: Standard output cannot be written: {problem.strerror}; the run has ended"
        print(f"{sentence} without a verdict.", file=sys.stderr)
    return pytest.ExitCode.INTERNAL_ERROR


def _terminate_workers(config: pytest.Config) -> None:
    """Pass the signal on: xdist would kill workers that are slow to end, with their files."""
    manager = getattr(config.pluginmanager.getplugin("dsession"), "nodemanager", None)
    for gateway in manager.group if manager else ():
        if (popen := getattr(gateway._io, "popen", None)) is not None:
            popen.terminate()


def _of_output(trace: TracebackType | None) -> bool:
    """Whether pytest's own writing to the terminal has failed, or the flush of it here."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_globals["__name__"]
    return name == __name__ or name.startswith("_pytest._io")
