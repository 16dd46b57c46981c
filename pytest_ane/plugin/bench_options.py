"""Options of pytest-benchmark over which it would end in a traceback, checked before the run."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

_GROUPS = ("group", "name", "func", "fullname", "fullfunc", "param")


def check(config: pytest.Config) -> None:
    """Check groups, clock and JSON file.

    Raises:
        pytest.UsageError: one is wrong.
    """
    groups = str(config.getoption("benchmark_group_by")).split(",")
    if wrong := [g for g in groups if g not in _GROUPS and not g.startswith("param:")]:
        raise pytest.UsageError(
            f"--benchmark-group-by={wrong[0]}: there are: {', '.join(_GROUPS)}, param:NAME."
        )
    _check_timer(config)
    if (file := config.getoption("benchmark_json")) is not None:
        _check_folder(f"--benchmark-json={file}", Path(file).absolute().parent, made=False)
        if Path(file).is_dir():
            raise pytest.UsageError(f"--benchmark-json={file}: is a folder; name a file.")


def check_storage(config: pytest.Config, *, recording: bool) -> None:
    """Check where runs are stored; with `recording` that it can be written.

    Raises:
        pytest.UsageError: it is no folder, or cannot be written.
    """
    uri = str(config.getoption("benchmark_storage"))
    if uri.startswith("elasticsearch+"):
        return
    if "://" in uri and not uri.startswith("file://"):
        raise pytest.UsageError(
            f"--benchmark-storage={uri}: is no folder; give a path, or file:// and a path."
        )
    if recording:
        folder = Path(uri.removeprefix("file://")).absolute()
        _check_folder(f"--benchmark-storage={uri}", folder, made=True)


def _check_timer(config: pytest.Config) -> None:
    """Check that the clock returns seconds; one of nanoseconds returns integers."""
    name = str(config.getoption("benchmark_timer"))
    module, _, attribute = name.rpartition(".")
    try:
        now = getattr(import_module(module), attribute)()
        wrong = "" if isinstance(now, float) else f"gives {now!r}"
    except Exception as error:
        wrong = f"cannot be read ({error})"
    if wrong:
        raise pytest.UsageError(
            f"--benchmark-timer={name}: {wrong}; give a clock of seconds, such as "
            "time.process_time."
        )


def _check_folder(what: str, folder: Path, *, made: bool) -> None:
    """Check that a folder can be written; `made`: missing folders are made."""
    there = folder
    while made and not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise pytest.UsageError(f"{what}: {there} is no folder; name another place.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise pytest.UsageError(f"{what}: {there} cannot be written; name another place.")
