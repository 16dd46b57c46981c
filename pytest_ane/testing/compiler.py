"""The compiler of a replayed Mac, in this process or as `xcrun coremlcompiler compile`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pytest_ane.core.errors import AneError
from pytest_ane.mil import read_model
from pytest_ane.mil.compile import write_compiled
from pytest_ane.testing.failing import Failures
from pytest_ane.testing.script import BUILT_BY, Script


def compile_model(package: Path, target: Path, script: Script, failures: Failures) -> Path:
    """Compile a package; the result names the build of macOS that made it.

    Raises:
        RuntimeError: a failure is due, the package cannot be read, or is no ML Program.
    """
    failures.raise_due("compile", str(package))
    try:
        write_compiled(read_model(package), target)
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
