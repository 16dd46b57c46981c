"""Files and folders that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

_MODE = 0o644


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, which takes its place, mode included, if the block does not raise.

    Whoever looks meanwhile sees the old file; after a failure it is still there, and the new one
    is gone.
    """
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        new = Path(file.name)
    try:
        yield new
        with new.open("ab") as file:
            os.fsync(file.fileno())
        new.chmod(path.stat().st_mode & 0o7777 if path.exists() else _MODE)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """The path of a new folder to be made beside `path`, which takes its place as a whole.

    After a failure what was at `path` is still there, and the new folder is gone.
    """
    with TemporaryDirectory(dir=path.parent, prefix=".", ignore_cleanup_errors=True) as folder:
        new, old = Path(folder, path.name), Path(folder, f"{path.name}.old")
        yield new
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever looks sees the old one or the new one."""
    with replacing(path) as new:
        new.write_bytes(data)
