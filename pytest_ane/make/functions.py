"""One function of a package of several, as a package of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import BuildError, ProgramError
from pytest_ane.mlprogram.package import parse_package


def extract_function(package: Path, function: str, target: Path) -> Path:
    """Write a package whose `main` is a function of another; weights are linked where they can be.

    Args:
        package: an `.mlpackage` of several functions.
        function: the name of one.
        target: the new package's path.

    Returns:
        The new package's path.

    Raises:
        ProgramError: the package cannot be read, or has no such function.
        BuildError: the new one cannot be written.
    """
    try:
        _copy(package, target)
        file, message = parse_package(target)
        description, functions = message.description, message.mlProgram.functions
        declared = next((f for f in description.functions if f.name == function), None)
        if declared is None or function not in functions:
            raise ProgramError(f"{package}: has no function {function!r}.")
        program = type(functions[function])()
        program.CopyFrom(functions[function])
        functions.clear()
        functions["main"].CopyFrom(program)
        for field in ("input", "output", "state"):
            del getattr(description, field)[:]
            getattr(description, field).extend(getattr(declared, field))
        del description.functions[:]
        description.defaultFunctionName = ""
        write_atomically(file, message.SerializeToString())
    except OSError as error:
        raise BuildError(
            f"{package}: its function {function} cannot be written to {target} ({error.strerror}); "
            "free space, or set TMPDIR."
        ) from None
    return target


def _copy(package: Path, target: Path) -> None:
    try:
        shutil.copytree(package, target, copy_function=os.link)
    except shutil.Error:  # Another disk.
        shutil.rmtree(target)
        shutil.copytree(package, target)
