"""Memory of this machine, and of the container that a process runs in (cgroup v2)."""

from __future__ import annotations

import os
from pathlib import Path

_UNKNOWN = 3 * 10**9
"""Bytes taken for the machine's where the system does not tell, as on Windows."""
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory this process may use, taken or not: the machine's, or its container's."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Not on Windows.
        machine = _UNKNOWN
    try:
        return min(machine, int((cgroup / "memory.max").read_text()))
    except (OSError, ValueError):  # No container, or "max".
        return machine


def free_memory(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Bytes of memory that no process has taken; all there are where the system does not tell."""
    limit = available_memory(cgroup)
    free = _table(meminfo, "MemAvailable:") * 1024 or limit
    return max(0, min(free, limit - _table(cgroup / "memory.stat", "anon")))


def _table(file: Path, key: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    rows = (line.split() for line in lines)
    return next((int(row[1]) for row in rows if len(row) > 1 and row[0] == key), 0)


def bytes_text(size: int) -> str:
    """`107 GB`, `8 GB`, `1.5 MB`: three digits, or as many as there are before the point."""
    scale, unit = next(((s, u) for s, u in _UNITS if size >= s), _UNITS[-1])
    number = size / scale if size < 10**300 else float("inf")
    return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
