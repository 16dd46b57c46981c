"""The processes of a run, with xdist and without, and what SIGTERM makes of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator

import pytest

from pytest_ane.project.process import TERMINATED, on_terminate

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
    """Whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


def worker(config: pytest.Config) -> str:
    """`gw0`, or `main` without xdist."""
    return str(getattr(config, "workerinput", {}).get("workerid", "main"))


def run(config: pytest.Config) -> Generator[None, object, object]:
    """Around a run: SIGTERM ends it with exit code 143, workers of xdist as Ctrl-C."""

    def end() -> None:
        if is_worker(config):
            raise KeyboardInterrupt
        _terminate_workers(config)
        pytest.exit("terminated", returncode=TERMINATED)

    try:
        with on_terminate(end):
            return (yield)
    finally:
        # All workers have ended by now: one that was ended early may have written until then.
        config.stash.get(CLEAN, lambda: None)()


def _terminate_workers(config: pytest.Config) -> None:
    """Pass the signal on: xdist would kill workers that are slow to end, with their files."""
    manager = getattr(config.pluginmanager.getplugin("dsession"), "nodemanager", None)
    for gateway in manager.group if manager else ():
        if (popen := getattr(gateway._io, "popen", None)) is not None:
            popen.terminate()
