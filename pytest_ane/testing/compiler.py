"""The compiler of a replayed Mac, in this process or as `xcrun coremlcompiler compile`.

How often each step was tried is counted in files, which all processes share.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_ane.core.errors import AneError
from pytest_ane.mil import read_functions, read_model
from pytest_ane.mil.compiled import write_compiled
from pytest_ane.testing.script import BUILT_BY, Failure, Point, Script


def compile_model(package: Path, target: Path, script: Script, failures: Failures) -> Path:
    """Compile a package; the result names the build of macOS that made it.

    Raises:
        RuntimeError: a failure is due, the package cannot be read, or is no ML Program.
    """
    failures.raise_due("compile", str(package))
    try:
        write_compiled(read_model(package), target, read_functions(package))
    except AneError as error:
        raise RuntimeError(f"Error compiling model: {error}") from error
    (target / BUILT_BY).write_text(json.dumps({"build": script.machine.build}) + "\n")
    return target


def main(tools: str, package: str, folder: str) -> str | None:
    """Compile into a folder, as Core ML's compiler does; what went wrong, or None."""
    script = Script.load(tools)
    target = Path(folder) / f"{Path(package).stem}.mlmodelc"
    try:
        compile_model(Path(package), target, script, Failures(script, Path(tools)))
    except RuntimeError as error:
        return f"coremlc: error: {error}"
    print(target / "coremldata.bin")
    return None


class Failures:
    """The failures of a script, each with the count of questions it matched."""

    def __init__(self, script: Script, folder: Path) -> None:
        self._build = script.machine.build
        self._failures = script.failures
        self._folder = folder

    def raise_due(self, at: Point, path: str) -> None:
        """Count a question; an abort or a hang that is due happens.

        Raises:
            RuntimeError: a failure is due.
        """
        due = [f for index, f in enumerate(self._failures) if self._due(index, f, at, path)]
        if not due:
            return
        if due[0].effect == "abort":
            os.abort()
        if due[0].effect == "hang":
            while True:
                ctypes.PyDLL(None).pause()  # Of all of ctypes' libraries this one holds the GIL.
        raise RuntimeError(due[0].message.replace("{path}", path))

    def _due(self, index: int, failure: Failure, at: Point, path: str) -> bool:
        if failure.at != at or not fnmatchcase(path, failure.path):
            return False
        if failure.when == "other-build" and built_by(Path(path)) in (None, self._build):
            return False
        count = self._count(index) - failure.after
        return count > 0 and (failure.times is None or count <= failure.times)

    def _count(self, index: int) -> int:
        with (self._folder / f"count-{index}").open("ab") as file:
            file.write(b".")
            file.flush()
            return file.tell()


def built_by(compiled: Path) -> str | None:
    """The build of macOS whose replayed compiler made a model; None for another compiler."""
    try:
        return str(json.loads((compiled / BUILT_BY).read_bytes())["build"])
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
