"""Temporary files of a build, in a folder of their own that goes when the build ends.

coremltools deletes what it wrote into the temporary folder only when the interpreter exits, which
is late in a run over many shards, and never where the process is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_around: list[Path] = []
"""What was the temporary folder before each scratch folder that is in use."""


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Let temporary files of this process, and of those it starts, be made in a folder."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


@contextmanager
def scratch(name: str) -> Iterator[None]:
    """A fresh folder for temporary files; what a killed process left under the name goes first."""
    for left in leftovers(re.escape(name)):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    _around.append(folder.parent)
    try:
        with temporary_files_in(folder):
            yield
    finally:
        _around.pop()
        shutil.rmtree(folder, ignore_errors=True)


def temporary_folder() -> Path:
    """The folder for temporary files, outside of every build's own."""
    return _around[0] if _around else Path(tempfile.gettempdir())


def leftovers(form: str) -> list[Path]:
    """Folders made under names of a form, a regular expression."""
    made = re.compile(rf"(?:{form})-[a-z0-9_]{{8}}")  # As `mkdtemp` ends them.
    return [path for path in Path(tempfile.gettempdir()).iterdir() if made.fullmatch(path.name)]
