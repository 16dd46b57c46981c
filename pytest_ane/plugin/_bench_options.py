"""Options of pytest-benchmark: what they mean for shards, and which would end in a traceback."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.plugin._options import wanted

if TYPE_CHECKING:
    from pytest_ane.plugin._workspace import Workspace

FILE = "test_throughput.py"
"""Our benchmarks among the gates."""
BY_OPTION, COMPARE = "--benchmark-disable", "--benchmark-compare"
_GROUPS = ("group", "name", "func", "fullname", "fullfunc", "param")


def is_wanted(config: pytest.Config) -> bool:
    """Whether a run is for benchmarks: with shards, and by `-m`, an option or our file.

    pytest itself then sees to it that `-m "not bench"` runs none.
    """
    only = bool(config.getoption("benchmark_only", False))
    named = any(f"/{FILE}" in f"/{arg}" for arg in config.invocation_params.args)
    chosen = "bench" in config.option.markexpr or only or named or is_requested(config)
    return wanted(config) and chosen


def is_compared(config: pytest.Config) -> bool:
    """Whether `--benchmark-compare` was given, on the command line or in `addopts`."""
    return bool(config.getoption("benchmark_compare", None))


def is_requested(config: pytest.Config) -> bool:
    """Whether it was given on the command line, so that a run without a comparison is an error."""
    return any(str(a).partition("=")[0] == COMPARE for a in config.invocation_params.args)


def is_recording(config: pytest.Config) -> bool:
    """Whether this run is stored."""
    return any(config.getoption(f"benchmark_{how}", None) for how in ("save", "autosave"))


def is_given(config: pytest.Config, option: str) -> bool:
    """Whether an option was given whose default is no None."""
    given = [*map(str, config.invocation_params.args), *config.getini("addopts")]
    return any(arg.startswith(option) for arg in given)


def rounds(config: pytest.Config) -> int | None:
    """The rounds that `--benchmark-min-rounds` asks for; None where it was not given."""
    if not is_given(config, "--benchmark-min-rounds"):
        return None
    return int(config.getoption("benchmark_min_rounds"))


def session(config: pytest.Config) -> Any:
    """pytest-benchmark's own record of the run."""
    return config._benchmarksession  # type: ignore[attr-defined]


def off(config: pytest.Config) -> str:
    """Why pytest-benchmark times nothing."""
    by_option = config.getoption("benchmark_disable") and not config.getoption("benchmark_enable")
    return BY_OPTION if by_option else "pytest-benchmark is off under xdist"


def has_limit(config: pytest.Config, space: Workspace, subject: str) -> bool:
    """Whether a benchmark is compared with a stored run, or has a floor."""
    policy = space.policy_of(subject).throughput
    limits = (policy.max_regression, policy.min_tok_s)
    return is_compared(config) or any(limit is not None for limit in limits)


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
