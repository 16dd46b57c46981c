"""Whole runs on a replayed Mac, or with slow shards: `pytest -p pytest_ane.testing.plugin ...`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_ane.mlprogram.errors import RecordingError
from pytest_ane.testing.replayer import Replayer
from pytest_ane.testing.script import Script
from pytest_ane.testing.slow import slowed

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
    """`L01:0.5`, in seconds."""
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


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in the header what is replayed, and which shards are slowed down."""
    return "; ".join(filter(None, (_replayed(config), _slowed(config)))) or None


def _slowed(config: pytest.Config) -> str:
    delays = config.getoption("--ane-slow") or ()
    return ", ".join(f"{shards} slowed by {1000 * more:g} ms a call" for shards, more in delays)


def _replayed(config: pytest.Config) -> str:
    replayer = config.stash.get(_KEY, None)
    if replayer is None:
        return ""
    machine = replayer.script.machine
    folder = config.getoption("--ane-replay")
    return f"Core ML: replayed from {folder} ({machine.chip}, macOS {machine.os})"


@pytest.fixture
def coreml_replay() -> Iterator[Callable[[Script | Path | str], Replayer]]:
    """Replay a script until the test ends: `coreml_replay(Script(...))`."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(Replayer(script))
