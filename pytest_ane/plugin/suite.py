"""How the gate suite joins a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ane.plugin import bench
from pytest_ane.project.suite import FOLDER, own, shipped

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
            if bench.ignored(file, self.config):
                continue
            yield GateFile.from_parent(
                self, path=file, name=file.name, nodeid=f"{FOLDER}/{file.name}"
            )


class GateFile(pytest.Module):
    """A file of gates, whatever the project's python_files and python_functions say."""

    def funcnamefilter(self, name: str) -> bool:
        """Whether a function is a gate."""
        return name.startswith("test_")


def add_to(config: pytest.Config) -> None:
    """Add the gates to what is collected: the project's own copy if it has one, else ours.

    Nothing is added where the arguments already name the gates or a test inside them.
    """
    named = [
        Path(config.invocation_params.dir, arg.split("::")[0]).resolve() for arg in config.args
    ]
    if (folder := own(config.rootpath)) is not None:
        if not any(_within(path, folder) or _within(folder, path) for path in named):
            config.args.append(str(folder))
    elif not any(_within(path, shipped()) for path in named):
        config.stash[_JOINS] = shipped()


def join(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Add the shipped suite to what the session has collected."""
    if isinstance(collector, pytest.Session) and _JOINS in collector.config.stash:
        report.result.append(Suite.from_parent(collector, name=FOLDER, nodeid=FOLDER))


def _within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)
