"""The compression measurement: what the file holds, without an opinion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_ane.build.census import Census, take_census
from pytest_ane.build.distortion import Distortion
from pytest_ane.build.record import Artifact, weight_distortions
from pytest_ane.mil.records import MLModel


@dataclass(frozen=True)
class CompressionMeasurement:
    """What became of a package's weights.

    Attributes:
        size: bytes of the package, all files.
        notes: what the converter said of single weights, such as declining one.
        distortions: what compression did to each weight, where there is an uncompressed package
            to compare with.
    """

    census: Census
    size: int
    notes: tuple[str, ...] = ()
    distortions: tuple[Distortion, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a package of {self.size} bytes")


def measure(artifact: Artifact, program: MLModel, reference: Path | str) -> CompressionMeasurement:
    """Take the census of an artifact that holds `program`.

    `reference` is what the shard is held against; see `losses`.

    Raises:
        ProgramError: the program has impossible weights, or the reference cannot be read.
    """
    return CompressionMeasurement(
        take_census(program),
        artifact.size,
        artifact.record.notes if artifact.record else (),
        weight_distortions(artifact, program, reference),
    )
