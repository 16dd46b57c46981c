"""Files of a model: read whole, once their size is known to be sane."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from stat import S_ISREG

from pytest_ane.mlprogram.errors import ProgramError

_MOST_BYTES = 1 << 30
"""Model files hold structure; real ones have some MB. protobuf itself stops at 2 GiB."""
_LFS = b"version https://git-lfs"


def read_file(file: Path, most: int = _MOST_BYTES) -> bytes:
    """A file's bytes.

    Raises:
        FileNotFoundError: there is none.
        ProgramError: larger than `most`, unreadable, or a Git LFS pointer.
    """
    try:
        status = file.stat()
        # A pipe or a device, which an archive may hold, would be read without end.
        if not S_ISREG(status.st_mode):
            raise ProgramError(f"{file}: cannot be read (it is no regular file).")
        if (size := status.st_size) > most:
            raise ProgramError(f"{file}: {size:,} bytes, more than any model file should have.")
        data = file.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProgramError(f"{file}: cannot be read ({reason}).") from None
    if data.startswith(_LFS):
        raise ProgramError(f"{file}: is a Git LFS pointer, not the file; run: git lfs pull")
    return data


def stays_inside(name: str) -> bool:
    """Whether a path written in a package's file stays below the folder it is relative to.

    Judged by the text alone; links are judged by `core.digests.check_links`.
    """
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = posix.is_absolute() or windows.drive or windows.root
    return bool(posix.parts) and not rooted and ".." not in (*posix.parts, *windows.parts)
