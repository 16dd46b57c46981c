"""Whole runs on a replayed Mac: `pytest -p pytest_ane.testing.plugin --ane-replay=FOLDER`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_ane.errors import RecordingError
from pytest_ane.testing.replayer import Replayer
from pytest_ane.testing.script import Script

_KEY = pytest.StashKey[Replayer]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--ane-replay`."""
    parser.getgroup("pytest-ane").addoption(
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
    """Say that no Mac was asked."""
    replayer = config.stash.get(_KEY, None)
    if replayer is None:
        return None
    machine = replayer.script.machine
    folder = config.getoption("--ane-replay")
    return f"Core ML: replayed from {folder} ({machine.chip}, macOS {machine.os})"


@pytest.fixture
def coreml_replay() -> Iterator[Callable[[Script | Path | str], Replayer]]:
    """Replay a script until the test ends: `coreml_replay(Script(...))`."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(Replayer(script))
