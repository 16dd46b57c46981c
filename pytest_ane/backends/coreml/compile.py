"""From an `.mlpackage` to the `.mlmodelc` that Core ML loads."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from pytest_ane.backends.coreml.known import explained
from pytest_ane.backends.coreml.machine import XCODE, Machine
from pytest_ane.backends.coreml.native import coremltools
from pytest_ane.core.errors import ExecutionError


def compile_package(package: Path, target: Path, machine: Machine) -> None:
    """Compile to the folder `target`, by Xcode's compiler or else by the system's own.

    Raises:
        ExecutionError: the package cannot be compiled.
    """
    if package.suffix != ".mlpackage":
        raise ExecutionError(
            f"{package}: Core ML compiles folders named *.mlpackage; rename it, and name it anew."
        )
    if machine.has_xcode:
        _by_xcode(package, target)
    else:
        _by_system(package, target)
    if not target.is_dir():
        raise ExecutionError(
            f"{package}: {machine.compiler} left no compiled model; free some disk and run again."
        )


def _by_xcode(package: Path, target: Path) -> None:
    """`xcrun coremlcompiler compile`, which names its result after the package."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = ["xcrun", XCODE, "compile", str(package), folder]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        made = Path(folder, f"{package.stem}.mlmodelc")
        if done.returncode or not made.is_dir():
            why = RuntimeError(done.stderr.strip() or done.stdout.strip() or "it says nothing")
            raise _refused(package, f"`xcrun {XCODE} compile` (exit code {done.returncode})", why)
        made.replace(target)


def _by_system(package: Path, target: Path) -> None:
    """The compiler of the system, through `compile_model` of coremltools."""
    coremltools()
    from coremltools.models.utils import compile_model

    try:
        compile_model(str(package), str(target))
    except RuntimeError as error:
        raise _refused(package, "Core ML", error) from None


def _refused(package: Path, by: str, error: Exception) -> ExecutionError:
    return ExecutionError(
        f"{package}: {by} could not compile it: {explained(error)}; see that "
        f"`pytest-ane explain {package}` reads it, or convert it again."
    )
