"""Test your own gates without a Mac: Core ML's answers from a script, or as recorded on one.

    from pytest_ane.mac.testing import DeviceRule, Replayer, Script

    with Replayer(Script(devices=(DeviceRule("CPU", op="softmax"),))):
        ...                         # coremltools' own classes now say that softmax runs on the CPU

As a plugin it does so for a whole run, and slows shards down: `pytest -p pytest_ane.mac.testing
--ane-replay=FOLDER --ane-slow=L01:2 ...`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pytest_ane.mac._replay import Recorder, Replayer
from pytest_ane.mac._script import (
    INTEL,
    TRANSLATED,
    VIRTUAL,
    DeviceRule,
    Failure,
    Mac,
    Rewrite,
    Script,
    code_14,
    stale,
)
from pytest_ane.mlprogram.errors import RecordingError

__all__ = [
    "INTEL",
    "TRANSLATED",
    "VIRTUAL",
    "DeviceRule",
    "Failure",
    "Mac",
    "Recorder",
    "Replayer",
    "Rewrite",
    "Script",
    "code_14",
    "slowed",
    "stale",
]

_LONGEST = 60_000
_KEY = pytest.StashKey[Replayer]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--ane-replay` and `--ane-slow`."""
    group = parser.getgroup("pytest-ane")
    group.addoption(
        "--ane-slow",
        metavar="SHARDS:MS",
        action="append",
        type=_slowness,
        help="let every call of a shard, or of those that a pattern names, take so many "
        "milliseconds more: L01:0.5; to see a throughput gate turn red",
    )
    group.addoption(
        "--ane-replay",
        metavar="FOLDER",
        help="let a script or a recording in FOLDER answer for Core ML, instead of this machine",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replay until the run ends; early, because the backend looks for Core ML in configuring."""
    _replay(early_config, early_config.known_args_namespace.ane_replay)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """In workers of xdist too, which load no initial conftests."""
    _replay(config, config.getoption("--ane-replay"))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Slow shards down; not before numpy's threads have been chosen, which its import fixes."""
    if delays := session.config.getoption("--ane-slow"):
        stack = ExitStack()
        stack.enter_context(slowed(dict(delays)))
        session.config.add_cleanup(stack.close)


def _slowness(text: str) -> tuple[str, float]:
    shards, _, number = text.rpartition(":")
    try:
        milliseconds = float(number)
    except ValueError:
        milliseconds = float("nan")
    if not shards or not 0 < milliseconds <= _LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a shard's id or a pattern, and milliseconds, such as L01:0.5."
        )
    return shards, milliseconds / 1000


def _replay(config: pytest.Config, folder: str | None) -> None:
    if folder is None or _KEY in config.stash:
        return
    try:
        replayer = Replayer((config.invocation_params.dir / folder).resolve())
    except RecordingError as error:
        raise pytest.UsageError(f"--ane-replay: {error}") from None
    config.stash[_KEY] = replayer.__enter__()
    config.add_cleanup(lambda: replayer.__exit__())


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say in the header what is replayed, and which shards are slowed down."""
    delays = config.getoption("--ane-slow") or ()
    lines = [f"{shards} slowed by {1000 * more:g} ms a call" for shards, more in delays]
    if (replayer := config.stash.get(_KEY, None)) is not None:
        mac, folder = replayer.script.machine, config.getoption("--ane-replay")
        lines.append(f"Core ML: replayed from {folder} ({mac.chip}, macOS {mac.os})")
    return lines


@pytest.fixture
def coreml_replay() -> Iterator[Callable[[Script | Path | str], Replayer]]:
    """Replay a script until the test ends: `coreml_replay(Script(...))`."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(Replayer(script))


class SlowRunner:
    """A runner whose every prediction takes longer, of the processor's, and so everybody's time."""

    def __init__(self, runner: Any, seconds: float) -> None:
        self._runner = runner
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def predict(self, *arguments: Any, **named: Any) -> Any:
        """Predict, then use the processor for the added seconds."""
        result = self._runner.predict(*arguments, **named)
        # A sleep would oversleep by more than a shard takes, and be no time of the processor.
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        return result


@contextmanager
def slowed(seconds: Mapping[str, float]) -> Iterator[None]:
    """Slow shards down meanwhile, by seconds for patterns of ids and packages' names."""
    # Not on top: their import fixes numpy's threads, and takes a second.
    from pytest_ane.backends import CoreMLBackend, CpuBackend

    with ExitStack() as stack:
        for backend in (CpuBackend, CoreMLBackend):
            stack.enter_context(patch.object(backend, "load", _slow(backend.load, seconds)))
        yield


def _slow(load: Callable[..., Any], seconds: Mapping[str, float]) -> Callable[..., Any]:
    from pytest_ane.make.record import PACKAGE, BuildRecord

    def slow(backend: Any, artifact: Path, function: str | None = None) -> Any:
        runner, name = load(backend, artifact, function), artifact.stem
        if artifact.name == PACKAGE:
            name = str(BuildRecord.read(artifact.parent).key.get("shard", ""))
        added = sum(more for pattern, more in seconds.items() if fnmatchcase(name, pattern))
        return SlowRunner(runner, added) if added else runner

    return slow
