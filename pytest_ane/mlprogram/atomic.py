"""Files and folders that are whole or not there; and files of strangers, read with care."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
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


def read_regular(path: Path, most: int) -> bytes:
    """A file's bytes; `OSError` of a pipe or a device, which has no end, or of more than `most`."""
    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"{status.st_size:,} bytes are more than it should have")
    return path.read_bytes()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever looks sees the old one or the new one."""
    with replacing(path) as new:
        new.write_bytes(data)
