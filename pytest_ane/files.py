"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_whole(path: Path, data: bytes, check: Callable[[Path], object] | None = None) -> None:
    """Write a file in one step: whoever looks sees the old one or the new one.

    Args:
        path: the file, in a folder that exists.
        data: all its bytes.
        check: given the new file before it takes the old one's place, which it prevents by raising.
    """
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            Path(file.name).chmod(0o644)
            if check:
                check(Path(file.name))
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
