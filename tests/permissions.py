"""Permissions that bind root, too: tests of what may not be read or written run everywhere."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER = 1, 2, 3


@contextmanager
def binding_permissions() -> Iterator[None]:
    """Do without the capabilities by which root passes over permission bits (capabilities(7))."""
    if not sys.platform.startswith("linux") or os.geteuid():
        yield
        return
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # Effective, permitted, inheritable; the upper halves follow.
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~sum(1 << bit for bit in (_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER))
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0


@contextmanager
def permitted(mode: int, *paths: Path) -> Iterator[None]:
    """Take bits off the modes of files and folders, which binds the owner; give them back."""
    before = [(path, path.stat().st_mode) for path in paths]
    for path, whole in before:
        path.chmod(whole & mode)
    try:
        with binding_permissions():
            yield
    finally:
        for path, whole in before:
            path.chmod(whole)


def tree(folder: Path) -> list[Path]:
    """A folder and all that is in it."""
    return [folder, *folder.rglob("*")]
