"""Where the gate suite lies, and how it joins a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ane.plugin import bench

FOLDER = "gates"
_MARK = "test_fidelity.py"
_JOINS = pytest.StashKey[Path]()


class Suite(pytest.Collector):
    """The shipped gates, as a branch of its own beside what the arguments name.

    As an argument their folder would be dropped where the environment lies inside the project
    (pytest drops arguments below another, and does not descend into environments), and every
    conftest.py on the way to it would be loaded.
    """

    def collect(self) -> Iterator[pytest.Collector]:
        """One file per gate; ids begin with `gates/`, wherever the package is installed."""
        for file in sorted(self.config.stash[_JOINS].glob("test_*.py")):
            if bench.is_ignored(file, self.config):
                continue
            yield GateFile.from_parent(
                self, path=file, name=file.name, nodeid=f"{FOLDER}/{file.name}"
            )


class GateFile(pytest.Module):
    """A file of gates, whatever the project's python_files and python_functions say."""

    def funcnamefilter(self, name: str) -> bool:
        """Whether a function is a gate."""
        return name.startswith("test_")


def shipped() -> Path:
    """The gate suite of this installation: in the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "suite"
    return inside if (inside / _MARK).is_file() else package.parent / FOLDER


def in_use(config: pytest.Config) -> Path:
    """The project's own copy of the gates if it has one, else ours."""
    own = config.rootpath / FOLDER
    return own if (own / _MARK).is_file() else shipped()


def add_to(config: pytest.Config) -> None:
    """Add the gates to what is collected: the project's own copy if it has one, else ours.

    Nothing is added where the arguments already name the gates or a test inside them.
    """
    named = [
        Path(config.invocation_params.dir, arg.split("::")[0]).resolve() for arg in config.args
    ]
    own = config.rootpath / FOLDER
    if (own / _MARK).is_file():
        if not any(_within(path, own) or _within(own, path) for path in named):
            config.args.append(str(own))
    elif not any(_within(path, shipped()) for path in named):
        config.stash[_JOINS] = shipped()


def join(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Add the shipped suite to what the session has collected."""
    if isinstance(collector, pytest.Session) and _JOINS in collector.config.stash:
        report.result.append(Suite.from_parent(collector, name=FOLDER, nodeid=FOLDER))


def _within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)
