"""What a model takes: bytes of its packages, disk and memory, and whether there is as much."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ane.make.disk import Estimate, Volume, volumes
from pytest_ane.make.scratch import temporary_folder
from pytest_ane.manifest import Model
from pytest_ane.mlprogram.memory import bytes_text, free_memory
from pytest_ane.tools._scaffold.compression import Size, size_of
from pytest_ane.tools._scaffold.shapes import ShardShapes
from pytest_ane.tools._scaffold.text import Budget, ranges

_PROCESS, _ELEMENT, _LARGEST = 600 * 10**6, 10, 44
"""Bytes that building and judging a shard takes: of a process that has loaded torch and
coremltools, for each of a shard's numbers, and for each of its largest weight's, whose palettes are
found at once. The sum is at or above what was measured, by 20 % at most: 675 MB of a block of
SmolLM2-135M, 950 MB of a third of its head, 1.73 GB of a block of 61 million numbers, 2.33 GB of a
head's slice of 34 million."""
_FLOAT32 = 8
"""Bytes for each number of a shard's float32 reference: as it is read, and as it is used."""
_SLACK, _MORE = 1.05, 50_000
"""A budget is so many times what is expected, and bytes more for a longer program."""


@dataclass(frozen=True)
class Memory:
    """Bytes of memory that the largest shard takes, which one that is, and what is free."""

    shard: str
    build: int
    reference: int
    free: int

    @property
    def too_small(self) -> bool:
        """Whether the build will not fit."""
        return self.build > self.free


@dataclass(frozen=True)
class Sizes:
    """A model's sizes.

    Attributes:
        by_shard: of each package.
        states: bytes of the states of all shards.
        disk: the volumes that builds write to.
        memory: of the shard that takes most.
    """

    shards: tuple[ShardShapes, ...]
    by_shard: Mapping[str, Size]
    states: int
    disk: tuple[Volume, ...]
    memory: Memory

    def lines(self) -> Iterator[str]:
        """What to know before hours of building."""
        for alike in _alike(self.shards, self.by_shard):
            each = "each " if len(alike) > 1 else ""
            size = self.by_shard[alike[0].id]
            yield f"{ranges([shard.id for shard in alike])}: {each}{size}"
        sizes = self.by_shard.values()
        whole = Size(sum(size.fp16 for size in sizes), sum(size.compressed for size in sizes))
        held = f"; states of {bytes_text(self.states)}" if self.states else ""
        yield f"all {len(self.shards)} shards: {whole}{held}"
        yield f"disk: {' · '.join(map(str, self.disk))}"
        m = self.memory
        yield (
            f"memory: about {bytes_text(m.build)} to build and judge {m.shard}, the largest shard, "
            f"{bytes_text(m.reference)} for its float32 reference; {bytes_text(m.free)} free"
        )
        yield from self._short()

    def _short(self) -> Iterator[str]:
        """What will not suffice, and what to do."""
        for volume in self.disk:
            if (volume.needed or 0) > volume.free:
                yield (
                    f"the disk will not hold all of it ({volume}): begin with "
                    f"{self._smallest()}, free some space (pytest-ane cache prune), or name "
                    "another folder with --ane-cache=DIR"
                )
        if self.memory.too_small:
            fit = [s.id for s in self.shards if _memory(s) <= self.memory.free]
            what = f"select others, such as {fit[0]}" if fit else "use a machine with more"
            yield (
                f"memory will not suffice for {self.memory.shard}, which takes about "
                f"{bytes_text(self.memory.build)}: {what}, or close other programs"
            )

    def _smallest(self) -> str:
        return min(self.shards, key=lambda shard: self.by_shard[shard.id].both).id


def measure(shards: Sequence[ShardShapes], model: Model, cache: Path) -> Sizes:
    """Sizes of a model's shards.

    Args:
        shards: their weights.
        model: the manifest's, for each shard's compression.
        cache: the cache folder; it may not be there yet.
    """
    by_shard = {
        shape.id: size_of(shape, shard.requested)
        for shape, shard in zip(shards, model.shards, strict=True)
    }
    total = sum(size.compressed for size in by_shard.values())
    largest = max(size.both for size in by_shard.values())
    folder = next(path for path in (cache, *cache.parents) if path.is_dir())
    disk = volumes(folder, temporary_folder(), Estimate(len(shards), total, largest, total), 1)
    heaviest = max(shards, key=_memory)
    memory = Memory(
        heaviest.id,
        _memory(heaviest),
        _PROCESS + _FLOAT32 * max(shard.elements for shard in shards),
        free_memory(),
    )
    states = sum(shard.states for shard in shards)
    return Sizes(tuple(shards), by_shard, states, disk, memory)


def budgets(shards: Sequence[ShardShapes], by_shard: Mapping[str, Size]) -> Iterator[Budget]:
    """Limits that follow from the sizes: one for the blocks, one for the head's slices."""
    for glob, group in _globs(shards).items():
        most = {shard.id: int(_SLACK * by_shard[shard.id].compressed) + _MORE for shard in group}
        ratio = min(2 * shard.elements / most[shard.id] for shard in group)
        least = math.floor(100 * ratio) / 100
        yield Budget(glob, max(most.values()), least if least > 1 else None)


def _globs(shards: Sequence[ShardShapes]) -> dict[str, list[ShardShapes]]:
    """Shards by a glob of their ids: `L*`, `L*.p*`, `head.*`."""
    groups: dict[str, list[ShardShapes]] = {}
    for shard in shards:
        groups.setdefault(re.sub(r"\d+", "*", shard.id), []).append(shard)
    return groups


def _alike(shards: Sequence[ShardShapes], by_shard: Mapping[str, Size]) -> list[list[ShardShapes]]:
    """Shards of one kind and size."""
    groups: dict[tuple[str, Size], list[ShardShapes]] = {}
    for shard in shards:
        size = by_shard[shard.id]
        near = Size(round(size.fp16, -4), round(size.compressed, -4))
        groups.setdefault((shard.kind, near), []).append(shard)
    return list(groups.values())


def _memory(shard: ShardShapes) -> int:
    largest = max((weight.elements for weight in shard.weights), default=0)
    return _PROCESS + _ELEMENT * shard.elements + _LARGEST * largest
