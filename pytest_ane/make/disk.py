"""Disk space: what builds need, what is free, and Core ML's own caches of compiled plans."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pytest_ane.manifest import Compression, Linear, Palettize, Shard
from pytest_ane.mlprogram.digests import tree_bytes

_LOOSE = 2
"""A budget is what a package may have, and a median may be another kind's, a block's or a head's:
a disk is too small that does not hold half."""
_PATTERN = "*/com.apple.e5rt.e5bundlecache/*"


@dataclass(frozen=True)
class Estimate:
    """Bytes that packages still to be built will take.

    Attributes:
        count: packages still to be built.
        total: bytes of them all; `None` where nothing is known of at least one.
        largest: the temporary files of the largest, its uncompressed package and its compressed
            one, which are both written there.
        least: bytes they take at the very least.
        source: what the figures come from.
    """

    count: int
    total: int | None = 0
    largest: int = 0
    least: int = 0
    source: str = ""

    def __add__(self, other: Estimate) -> Estimate:
        known = self.total is not None and other.total is not None
        return Estimate(
            self.count + other.count,
            (self.total or 0) + (other.total or 0) if known else None,
            max(self.largest, other.largest),
            self.least + other.least,
            " and ".join(dict.fromkeys(filter(None, (self.source, other.source)))),
        )


@dataclass(frozen=True)
class Volume:
    """A volume with the space that builds need on it.

    Attributes:
        folders: the folders on it, in words.
        needed: bytes, at least `least`; `None` where that is all that is known.
        free: bytes.
    """

    folders: str
    needed: int | None
    least: int
    free: int

    @property
    def too_small(self) -> bool:
        """Whether not even the least will fit."""
        return self.least > self.free

    def __str__(self) -> str:
        known = f"about {amount(self.needed)} needed, " if self.needed is not None else ""
        least = f"at least {amount(self.least)} needed, " if self.least else ""
        return f"{self.folders}: {known or least}{amount(self.free)} free"


def estimate(missing: Sequence[Shard], finished: Sequence[int]) -> Estimate:
    """Bytes that a model's missing packages will take.

    Args:
        missing: shards still to be built.
        finished: bytes of packages of the same model that are built.
    """
    # The median, for a head is many times a block.
    typical = int(median(finished)) if finished else None
    known = [(shard, size) for shard in missing if (size := _size(shard, typical)) is not None]
    temporary = [int(size * (1 + compression_ratio(shard.requested))) for shard, size in known]
    return Estimate(
        count=len(missing),
        total=sum(size for _, size in known) if len(known) == len(missing) else None,
        largest=max(temporary, default=0),
        least=sum(size // _LOOSE for _, size in known),
        source="packages built before" if finished else "max-bytes" if known else "",
    )


def _size(shard: Shard, typical: int | None) -> int | None:
    """Bytes of a typical package, or the shard's budget where that is less; None if unknown."""
    sizes = (typical, shard.policy.compression.max_bytes)
    return min((size for size in sizes if size is not None), default=None)


def volumes(cache: Path, temporary: Path, needs: Estimate, builds: int) -> tuple[Volume, ...]:
    """The one or two volumes that builds write to; `builds` of them run at once."""
    at_once = min(builds, needs.count) * needs.largest
    known = needs.total is not None
    free, room = shutil.disk_usage(cache).free, shutil.disk_usage(temporary).free
    if cache.stat().st_dev == temporary.stat().st_dev:
        both = (needs.total or 0) + at_once if known else None
        names = f"cache {cache} and temporary files {temporary}"
        return (Volume(names, both, needs.least, free),)
    return (
        Volume(f"cache {cache}", needs.total, needs.least, free),
        Volume(f"temporary files {temporary}", at_once if known else None, 0, room),
    )


def amount(size: int) -> str:
    """`86.0 GB`, or `3.1 MB` below a tenth of one."""
    return f"{size / 1e9:.1f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"


def compression_ratio(compression: Compression) -> float:
    """Bytes of the weights in fp16 over bytes as compressed, about."""
    if isinstance(compression, Palettize):
        return 16 / compression.nbits
    if isinstance(compression, Linear):
        return 4 if compression.dtype.endswith("4") else 2
    return 1


@dataclass(frozen=True)
class PlanCache:
    """Plans for one build of macOS: their folder, its bytes, whether that build no longer runs."""

    path: Path
    size: int
    stale: bool


def plan_caches() -> list[PlanCache]:
    """All caches of compiled plans, largest first; none on other systems. Nothing is deleted.

    Core ML keeps plans in `~/Library/Caches/<application>/com.apple.e5rt.e5bundlecache/<build>`,
    one folder for each build of macOS, and never uses those of another build again; after a few
    updates they may take tens of gigabytes.
    """
    if sys.platform != "darwin":
        return []
    plans, build = [], _running()
    for path in filter(Path.is_dir, (Path.home() / "Library" / "Caches").glob(_PATTERN)):
        try:
            plans.append(PlanCache(path, tree_bytes(path), path.name != build))
        except OSError:  # Core ML is at work in it, or it is not ours to read.
            continue
    return sorted(plans, key=lambda cache: -cache.size)


def _running() -> str:
    """The running system's build, such as `25A354`."""
    process = subprocess.run(
        ["/usr/bin/sw_vers", "-buildVersion"], capture_output=True, text=True, check=False
    )
    return process.stdout.strip()
