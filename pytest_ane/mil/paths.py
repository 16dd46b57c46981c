"""Paths that a package names in its own files."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath


def stays_inside(name: str) -> bool:
    """Whether a path written in a package's file stays below the folder it is relative to.

    Judged by the text alone: files that are links, as in a download cache, are the user's doing
    and may lie anywhere.
    """
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    rooted = posix.is_absolute() or windows.drive or windows.root
    return bool(posix.parts) and not rooted and ".." not in (*posix.parts, *windows.parts)
