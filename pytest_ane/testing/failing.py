"""When a replayed Mac fails: how often it was asked is counted in files, which its tools share."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_ane.testing.script import BUILT_BY, Failure, Point, Script


class Failures:
    """The failures of a script, each with the count of questions it matched."""

    def __init__(self, script: Script, folder: Path) -> None:
        self._build = script.machine.build
        self._failures = script.failures
        self._folder = folder

    def raise_due(self, at: Point, path: str) -> None:
        """Count a question.

        Raises:
            RuntimeError: a failure is due.
        """
        due = [one for index, one in enumerate(self._failures) if self._due(index, one, at, path)]
        if due:
            raise RuntimeError(due[0].message.replace("{path}", path))

    def _due(self, index: int, failure: Failure, at: Point, path: str) -> bool:
        if failure.at != at or not fnmatchcase(path, failure.path):
            return False
        if failure.when == "other-build" and built_by(Path(path)) in (None, self._build):
            return False
        asked = self._count(index) - failure.after
        return asked > 0 and (failure.times is None or asked <= failure.times)

    def _count(self, index: int) -> int:
        with (self._folder / f"asked-{index}").open("ab") as file:
            file.write(b".")
            file.flush()
            return file.tell()


def built_by(compiled: Path) -> str | None:
    """The build of macOS whose replayed compiler made a model; None for another compiler."""
    try:
        return str(json.loads((compiled / BUILT_BY).read_bytes())["build"])
    except FileNotFoundError:
        return None
