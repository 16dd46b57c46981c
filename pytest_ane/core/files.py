"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

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


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever looks sees the old one or the new one."""
    with replacing(path) as new:
        new.write_bytes(data)
