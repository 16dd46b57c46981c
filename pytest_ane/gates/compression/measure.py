"""The compression measurement: what the file holds, without an opinion."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ane.gates.compression._palettes import Palette, measure_palettes
from pytest_ane.make.distortion import Distortion
from pytest_ane.make.record import Against, Artifact, weights_against
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.blob import blob_bytes
from pytest_ane.mlprogram.model import read_functions
from pytest_ane.mlprogram.records import Blob, MLModel
from pytest_ane.mlprogram.weights import Census, take_census


@dataclass(frozen=True)
class CompressionMeasurement:
    """What became of a package's weights.

    Attributes:
        size: bytes of the package, all files.
        others: of these, weights that only other functions of the package have.
        notes: what the converter said of single weights, such as declining one.
        distortions: what compression did to each weight, where there is a package to compare with.
        against: what the weights were compared with, see `weights_against`.
        missing: names of the uncompressed program's weights that the package lacks.
        extra: names of the package's weights that its uncompressed program lacks.
        changed: names of single numbers that differ by more than two steps of fp16.
        palettes: how the values of each compressed weight are spread; no verdict depends on it.
    """

    census: Census
    size: int
    notes: tuple[str, ...] = ()
    distortions: tuple[Distortion, ...] = ()
    against: Against = "nothing"
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    others: int = 0
    palettes: tuple[Palette, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.others <= self.size:
            raise ValueError(f"a package of {self.size} bytes, {self.others} of other functions")


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
        _others(artifact, program) if shard.function else 0,
        measure_palettes(program),
    )


def _others(artifact: Artifact, function: MLModel) -> int:
    """Bytes of weights that only other functions of a package, or other parts, have."""

    def bytes_of(model: MLModel) -> dict[tuple[str, Blob], int]:
        return {(model.weights, blob): size for blob, size in blob_bytes(model).items()}

    others: dict[tuple[str, Blob], int] = {}
    for other in read_functions(artifact.path):
        others |= bytes_of(other)
    mine = bytes_of(function)
    return sum(size for blob, size in others.items() if blob not in mine)
