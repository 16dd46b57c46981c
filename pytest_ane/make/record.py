"""Artifacts: a shard's package on disk, and the record of its build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

from pytest_ane.make.distortion import WeightComparison, compare_weights
from pytest_ane.manifest import GOLDEN, Shard
from pytest_ane.mlprogram.digests import files_digest, tree_bytes, tree_files
from pytest_ane.mlprogram.errors import BuildError, CacheError
from pytest_ane.mlprogram.model import counterpart, read_model
from pytest_ane.mlprogram.pairing import same_form
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import Weight, take_census

RECORD = "build.json"
PACKAGE = "shard.mlpackage"
Against: TypeAlias = Literal[
    "build", "changed", "uncompressed", "family", "reference", "compressed", "itself", "nothing"
]
"""What an artifact's weights are compared with: see `weights_against`."""


@dataclass(frozen=True)
class BuildRecord:
    """How a shard was built, stored beside its package.

    Attributes:
        key: everything the package depends on; its digest names the cache entry.
        description: the family's configuration, from which its layout is rebuilt.
        notes: the converter's remarks on single weights, such as declining one.
        seconds: wall time of the build.
        weights: what compression did to each weight, of the package with this `digest`.
        shard: qualified id of the shard that was built; another model may share the package.
    """

    key: dict[str, Any]
    description: dict[str, Any]
    notes: tuple[str, ...]
    seconds: float
    weights: WeightComparison = field(default_factory=WeightComparison)
    shard: str = ""
    digest: str = ""

    def write(self, folder: Path) -> None:
        """Store as `build.json` in an entry's folder."""
        (folder / RECORD).write_text(json.dumps(asdict(self), indent=1, sort_keys=True))

    @classmethod
    def read(cls, folder: Path) -> BuildRecord:
        """Read an entry's `build.json`; `CacheError` where it is damaged."""
        try:
            return TypeAdapter(cls).validate_python(json.loads((folder / RECORD).read_text()))
        except (OSError, ValueError) as error:
            raise CacheError(
                f"{folder / RECORD} is damaged ({error}); delete the folder {folder} and run again."
            ) from error


@dataclass(frozen=True)
class Artifact:
    """A shard's package on disk; `record` is None where the user brought it."""

    path: Path
    record: BuildRecord | None = None

    @property
    def files(self) -> Mapping[str, str]:
        """SHA-256 of the package's files as they are now, by relative path."""
        return tree_files(self.path)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the package's files: its identity."""
        return files_digest(self.files)

    @cached_property
    def size(self) -> int:
        """Bytes on disk, all files."""
        return tree_bytes(self.path)

    @classmethod
    def of_entry(cls, folder: Path) -> Artifact:
        """The artifact of a cache entry's folder; `CacheError` where its record is damaged."""
        return cls(folder / PACKAGE, BuildRecord.read(folder))


def weights_against(
    shard: Shard, artifact: Artifact, program: MLModel, converted: Path | None = None
) -> tuple[Against, WeightComparison]:
    """What the weights of an artifact, and of its program, are compared with, and the result.

    `build`: they were compared when the shard was built; `changed`: the package has other bytes
    than then. For packages of the user's: `uncompressed`, which the manifest names; `family`, what
    the shard's family makes of it, `converted`; `reference`, a package of the same program;
    `itself`, for it is not compressed. Where `nothing` is known to be its uncompressed form, or
    only a `compressed` reference, weights that a reference has are compared without a yardstick.

    `ProgramError` or `BuildError` where a package cannot be read, or is not uncompressed.
    """
    if (record := artifact.record) is not None:
        same = record.digest == artifact.digest
        return ("build", record.weights) if same else ("changed", WeightComparison())
    plain = uncompressed_package(shard, artifact, program)
    compressed = {weight.name for weight in _compressed(program)}
    if shard.uncompressed is None and converted is not None:
        own = read_model(converted)
        if same_form(program, own):
            return "family", _compared(program, own, shard)
        if compressed:  # Another conversion, whose weights may be scaled or folded otherwise.
            return "family", WeightComparison(extra=tuple(sorted(compressed)))
    if plain is not None and plain != artifact.path:
        weights = _compared(program, _read(plain, shard), shard)
        if shard.uncompressed is not None:
            return "uncompressed", weights
        if compressed.isdisjoint(weights.extra):
            return "reference", weights
    weights = WeightComparison()
    against: Against = "nothing" if compressed else "itself"
    if (reference := _reference_package(shard)) is not None:
        theirs = _read(reference, shard)
        weights = compare_weights(program, theirs)
        if compressed and _compressed(theirs):
            against = "compressed"
    return against, WeightComparison(weights.distortions)


def _compressed(program: MLModel) -> list[Weight]:
    return [weight for weight in take_census(program).weights if weight.stages]


def _compared(program: MLModel, plain: MLModel, shard: Shard) -> WeightComparison:
    return compare_weights(program, plain, shard.compression, own=True)


def _reference_package(shard: Shard) -> Path | None:
    path = shard.reference
    is_package = isinstance(path, Path) and path.suffix not in GOLDEN and path.exists()
    return path if is_package else None  # type: ignore[return-value]


def _read(package: Path, shard: Shard) -> MLModel:
    """What a shard is compared with of a package: the function of its own name, or the only one."""
    return read_model(package, function=counterpart(package, shard.function))


def uncompressed_package(shard: Shard, artifact: Artifact, program: MLModel) -> Path | None:
    """The package that holds an artifact's program before compression; None where there is none.

    It is the manifest's `uncompressed`, which is a `BuildError` where it is compressed; or else the
    artifact or a reference package, if nothing in it is compressed.
    """
    if (plain := shard.uncompressed) is not None:
        if found := _compressed(_read(plain, shard)):
            raise BuildError(
                f"{shard.qualified}: 'uncompressed' names {plain}, but its {found[0].name} is "
                f"stored as {found[0].storage}; name the program before compression."
            )
        return plain
    if not _compressed(program):
        return artifact.path
    reference = _reference_package(shard)
    return None if reference is None or _compressed(_read(reference, shard)) else reference
