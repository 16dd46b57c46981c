"""`pytest-ane init --from`: a manifest of a model that somebody has, right the first time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_ane.make.cache import default_root
from pytest_ane.make.disk import Estimate, Volume, temporary_folder, volumes
from pytest_ane.manifest import Model, SourceTable, parse
from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.mlprogram.memory import bytes_text, free_memory
from pytest_ane.mlprogram.text import printable
from pytest_ane.models.sources import source_path
from pytest_ane.models.sources.files import OnlyGGUFError, locate_snapshot
from pytest_ane.tools._init_shapes import ShardShapes, Size, choose_compression, describe, size_of
from pytest_ane.tools._init_text import Budget, choose_prompts, manifest_text, quoted, ranges

# What a model takes: bytes of its packages, disk and memory, and whether there is as much.

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


# `pytest-ane init --from`: a manifest of a model that somebody has, right the first time.

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([\w./-]+\.gguf))?")
"""A repository, `@` a branch, tag or commit, and a file, as in the paths of `HfFileSystem`:
https://huggingface.co/docs/huggingface_hub/guides/hf_file_system."""
_NAME_ONE = (
    "name a folder of safetensors with its config.json, a GGUF file, or a repository of the "
    "Hugging Face cache, as Qwen/Qwen3-0.6B."
)


@dataclass(frozen=True)
class Scaffold:
    """A manifest to be written.

    Attributes:
        text: of `shards.toml`.
        shards: their ids, in running order.
        positions: that behaviour judges.
        judged: the same in words; of an encoder, texts.
        notes: what is unusual about the prompts.
        sizes: what it takes.
    """

    text: str
    family: str
    shards: tuple[str, ...]
    positions: int
    judged: str
    notes: tuple[str, ...]
    sizes: Sizes

    def lines(self) -> Iterator[str]:
        """What a reader wants to know of it, and what to run."""
        count = len(self.shards)
        yield f"family {self.family}, {count} shards; behaviour judges {self.judged}"
        yield from self.notes
        yield from self.sizes.lines()
        yield f"next: pytest --ane-shards={self.shards[0]} -m gate"
        yield "then: pytest --ane-shards=all -m gate"

    @property
    def facts(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "family": self.family,
            "positions": self.positions,
            "notes": self.notes,
            "shards": self.sizes.by_shard,
            "states": self.sizes.states,
            "disk": self.sizes.disk,
            "memory": self.sizes.memory,
        }


def scaffold(source: str, manifest: Path, cache: Path | None = None) -> Scaffold:
    """A manifest of a model: a folder or file of safetensors, a GGUF file, or a hub's repository.

    Args:
        source: its path, or `Qwen/Qwen3-0.6B`, or a file of such a repository,
            `ggml-org/gemma-3-270m-GGUF/gemma-3-270m-Q8_0.gguf`; of the local Hugging Face cache,
            the branch `main` unless `@` and a revision follow the repository.
        manifest: where the manifest will be; nothing is written.
        cache: the cache folder; None for the user's own.

    Raises:
        SourceError: the source is missing, broken, of no family of ours, or of a variant that its
            family refuses.
        ManifestError: the source's name cannot stand in a manifest.
    """
    table, name = _find(source)
    where = _toml(table, manifest.parent)
    model = describe(table, name)
    golden = choose_prompts(model)
    scheme = choose_compression(model.shards)
    text = partial(manifest_text, model, where, scheme, golden)
    # The limits follow from sizes, and these from the compression as the manifest has it.
    unlimited = parse(text(()), manifest).models[0]
    sizes = measure(model.shards, unlimited, cache or default_root())
    limited = text(budgets(model.shards, sizes.by_shard))
    parse(limited, manifest)
    texts, positions = len(golden.prompts), golden.positions
    judged = f"{texts} texts" if model.is_encoder else f"{positions} positions"
    notes = tuple(golden.notes())
    return Scaffold(limited, model.family, model.cut.shards, positions, judged, notes, sizes)


def _find(source: str) -> tuple[SourceTable, Path]:
    """Where the model that somebody names is, and the file or folder by its own name.

    A repository is pinned to the commit that the cache has.
    """
    path = Path(source).expanduser()
    try:
        there = path.exists()
    except (OSError, ValueError):  # Too long a name, or a NUL in it.
        there = False
    if not source:
        raise SourceError(f"--from names nothing; {_NAME_ONE}")
    if there:
        return SourceTable(path=path.absolute()), path.absolute()
    if not (parts := _REPOSITORY.fullmatch(source)):
        raise SourceError(
            f"{printable(source)}: no such file or folder; check the path, or {_NAME_ONE}"
        )
    hub, revision, file = parts.groups()
    try:
        snapshot = locate_snapshot(hub, revision, file)
    except OnlyGGUFError as error:
        names = ", ".join(f"{source}/{name}" for name in error.files)
        raise SourceError(f"{source}: a repository of GGUF files; name one: {names}.") from error
    except SourceError as error:
        why = str(error).replace("; run: ", "; check the path, or run: ")
        raise SourceError(f"{source}: no such file or folder, and {why}") from error
    return SourceTable(hub=f"{hub}@{snapshot.name}", file=file), Path(hub, file or "")


def _toml(table: SourceTable, folder: Path) -> str:
    """A source as the manifest has it: a path is relative where it is below the folder."""
    file, folder = source_path(table), folder.absolute()
    keys = table.model_dump(include={"hub", "file"}, exclude_none=True)
    if table.path is not None:
        path = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
        # No manifest may say ".", which is what an empty path is.
        keys = {"path": f"../{folder.resolve().name}" if path == "." else path}
    if file.is_file() and file.suffix != ".json":
        keys["sha256"] = file_digest(file)
    return f"{{ {', '.join(f'{key} = {quoted(value)}' for key, value in keys.items())} }}"
