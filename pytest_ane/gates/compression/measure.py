"""The compression measurement: what the file holds, without an opinion."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ane.build.census import Census, take_census
from pytest_ane.build.distortion import Distortion
from pytest_ane.build.record import Against, Artifact, weights_against
from pytest_ane.manifest import Shard
from pytest_ane.mil.records import MLModel


@dataclass(frozen=True)
class CompressionMeasurement:
    """What became of a package's weights.

    Attributes:
        size: bytes of the package, all files.
        notes: what the converter said of single weights, such as declining one.
        distortions: what compression did to each weight, where there is a package to compare with.
        against: what the weights were compared with, see `weights_against`.
        missing: names of the uncompressed program's weights that the package lacks.
        extra: names of the package's weights that its uncompressed program lacks.
        changed: names of single numbers that differ by more than two steps of fp16.
    """

    census: Census
    size: int
    notes: tuple[str, ...] = ()
    distortions: tuple[Distortion, ...] = ()
    against: Against = "nothing"
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a package of {self.size} bytes")


def measure(shard: Shard, artifact: Artifact, program: MLModel) -> CompressionMeasurement:
    """Take the census of an artifact that holds `program`, and compare its weights.

    Raises:
        ProgramError: the program has impossible weights, or another package cannot be read.
        BuildError: what the manifest names as uncompressed is not.
    """
    against, weights = weights_against(shard, artifact, program)
    return CompressionMeasurement(
        take_census(program),
        artifact.size,
        artifact.record.notes if artifact.record else (),
        weights.distortions,
        against,
        weights.missing,
        weights.extra,
        weights.changed,
    )
