"""Artifacts: a shard's package on disk, and the record of its build."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_ane.build.census import take_census
from pytest_ane.build.distortion import Distortion, distortions
from pytest_ane.core.digests import tree_bytes, tree_digest
from pytest_ane.core.errors import CacheError
from pytest_ane.manifest import GOLDEN, Shard
from pytest_ane.mil import read_model
from pytest_ane.mil.records import MLModel

RECORD = "build.json"
PACKAGE = "shard.mlpackage"


@dataclass(frozen=True)
class BuildRecord:
    """How a shard was built, stored beside its package.

    Attributes:
        key: everything the package depends on; its digest names the cache entry.
        description: the family's configuration, from which its layout is rebuilt.
        notes: the converter's remarks on single weights, such as declining one.
        seconds: wall time of the build.
        distortions: what compression did to each weight, against the uncompressed package.
        shard: qualified id of the shard that was built, for people; another model with the same
            source may share the package.
    """

    key: dict[str, Any]
    description: dict[str, Any]
    notes: tuple[str, ...]
    seconds: float
    distortions: tuple[Distortion, ...] = ()
    shard: str = ""

    def write(self, folder: Path) -> None:
        """Store as `build.json` in an entry's folder."""
        (folder / RECORD).write_text(json.dumps(asdict(self), indent=1, sort_keys=True))

    @classmethod
    def read(cls, folder: Path) -> BuildRecord:
        """Read an entry's `build.json`; `CacheError` where it is damaged."""
        try:
            fields = json.loads((folder / RECORD).read_text())
            fields["notes"] = tuple(fields["notes"])
            fields["distortions"] = tuple(Distortion(**d) for d in fields.get("distortions", ()))
            return cls(**fields)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CacheError(
                f"{folder / RECORD} is damaged ({error}); delete the folder {folder} and run again."
            ) from error


@dataclass(frozen=True)
class Artifact:
    """A shard's package on disk; `record` is None where the user brought it."""

    path: Path
    record: BuildRecord | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the package's files: its identity."""
        return tree_digest(self.path)

    @cached_property
    def size(self) -> int:
        """Bytes on disk, all files."""
        return tree_bytes(self.path)

    @classmethod
    def of_entry(cls, folder: Path) -> Artifact:
        """The artifact of a cache entry's folder; `CacheError` where its record is damaged."""
        return cls(folder / PACKAGE, BuildRecord.read(folder))


def weight_distortions(
    artifact: Artifact, program: MLModel, reference: Path | str
) -> tuple[Distortion, ...]:
    """The errors of an artifact's weights: as its build measured them, or against a package.

    Args:
        artifact: the compressed package.
        program: its program.
        reference: what the shard is held against; a package is taken to be its uncompressed form,
            anything else has no weights to compare with.

    Raises:
        ProgramError: the reference cannot be read.
    """
    if artifact.record is not None:
        return artifact.record.distortions
    if not isinstance(reference, Path) or reference.suffix == GOLDEN:
        return ()
    return distortions(program, read_model(reference))


def uncompressed_package(shard: Shard, artifact: Artifact, program: MLModel) -> Path | None:
    """The package that holds an artifact's program before compression.

    It is the manifest's `uncompressed`; or the artifact, where no weight of it is compressed; or a
    reference package of the same program: one without compressed weights that has every weight of
    the artifact, by name and shape.

    Args:
        shard: the artifact's.
        artifact: the shard's package.
        program: the artifact's.

    Returns:
        None where there is no such package; a shard that is built was measured against its own
        when it was built.

    Raises:
        ProgramError: the artifact or the reference cannot be read.
    """
    if shard.uncompressed is not None:
        return shard.uncompressed
    weights = take_census(program).weights
    if not any(weight.stages for weight in weights):
        return artifact.path
    reference = shard.reference
    if not isinstance(reference, Path) or reference.suffix == GOLDEN or not reference.exists():
        return None
    others = take_census(read_model(reference)).weights
    if any(weight.stages for weight in others):
        return None
    same = {(w.name, w.shape) for w in weights} <= {(w.name, w.shape) for w in others}
    return reference if same else None
