"""Core ML's own caches of compiled plans on macOS: what an older system left behind.

Core ML keeps plans in `~/Library/Caches/<application>/com.apple.e5rt.e5bundlecache/<build>`, one
folder for each build of macOS, and never uses those of another build again; after a few updates
they may take tens of gigabytes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_ane.core.digests import tree_bytes

_PATTERN = "*/com.apple.e5rt.e5bundlecache/*"


@dataclass(frozen=True)
class PlanCache:
    """Plans for one build of macOS: their folder and its bytes."""

    path: Path
    size: int
    stale: bool


def plan_caches(caches: Path | None = None, build: str | None = None) -> list[PlanCache]:
    """All caches of plans, largest first; none on other systems. Nothing is ever deleted.

    Args:
        caches: the folder of all applications' caches; the user's own by default.
        build: the running system's build, such as `25A354`; asked of the system by default.
    """
    if caches is None and sys.platform != "darwin":
        return []
    caches, build = caches or Path.home() / "Library" / "Caches", build or _running()
    found = []
    for path in filter(Path.is_dir, caches.glob(_PATTERN)):
        try:
            found.append(PlanCache(path, tree_bytes(path), path.name != build))
        except OSError:  # Core ML is at work in it, or it is not ours to read.
            continue
    return sorted(found, key=lambda plans: -plans.size)


def _running() -> str:
    asked = subprocess.run(
        ["/usr/bin/sw_vers", "-buildVersion"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()
