"""The compression measurement: what the file holds, without an opinion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.gates.verdict import Column, Table, rounded
from pytest_ane.make.distortion import Distortion, read_rows
from pytest_ane.make.record import Against, Artifact, weights_against
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.arrays import DoubleArray
from pytest_ane.mlprogram.blob import blob_bytes, load
from pytest_ane.mlprogram.errors import ExecutionError, ProgramError
from pytest_ane.mlprogram.executor.weights import Packed, count, stored
from pytest_ane.mlprogram.model import read_functions
from pytest_ane.mlprogram.records import Blob, MLModel
from pytest_ane.mlprogram.weights import (
    Census,
    ProgramWeight,
    constants_of,
    decompress,
    find_weights,
    take_census,
)

_ENTRIES = 16
"""Entries of the largest palette that is kept as it is, and bins of any other histogram."""
_SAMPLE = 1 << 20
"""Elements that are decoded of a weight without a palette, in `_PARTS` parts of its rows."""
_PARTS = 16
_WHOLE = 1 << 24
"""Elements of the largest weight that is decoded as a whole, where rows cannot be alone."""
_BY_ROWS = ("constexpr_lut_to_dense", "constexpr_blockwise_shift_scale")


@dataclass(frozen=True)
class Palette:
    """Values of a compressed weight, ascending, and how many elements have each.

    Attributes:
        values: entries of a palette of up to 16, of several palettes the median entry of each rank;
            of any other weight the middles of 16 equal bins. NaN, the last, is what is not finite.
        counts: elements of each value; of a large weight without a palette, those of a sample.
    """

    weight: str
    values: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.counts):
            raise ValueError(f"{len(self.values)} values with {len(self.counts)} counts")
        if min(self.counts, default=-1) < 0 or not sum(self.counts):
            raise ValueError("a palette has no elements, or fewer than none")


def measure_palettes(program: MLModel) -> tuple[Palette, ...]:
    """Of every compressed weight that can be decoded, or some rows of it; in program order."""
    found: dict[str, Palette] = {}
    for each in find_weights(program):
        name, weight = each.weight.name, each.weight
        wanted = name not in found and weight.stages and weight.elements
        if wanted and (spread := _spread(program, each)) is not None:
            values, counts = (np.asarray(part).tolist() for part in spread)
            found[name] = Palette(name, tuple(map(rounded, values)), tuple(map(int, counts)))
    return tuple(found.values())


def palettes_table(palettes: Sequence[Palette]) -> Table:
    """Each value of each weight, and the share of elements that have it."""
    columns = (Column("weight"), Column("value"), Column("share", "%", bar=True))
    rows = (
        (palette.weight, value, rounded(n / sum(palette.counts)))
        for palette in palettes
        for value, n in zip(palette.values, palette.counts, strict=True)
    )
    return Table("values of weights as stored", columns, tuple(rows), "palettes", listed=False)


def _spread(program: MLModel, weight: ProgramWeight) -> tuple[DoubleArray, Any] | None:
    """Values `[K]`, and elements of each."""
    try:
        if (levels := _levels(program, weight)) is not None:
            tables, counts = levels
            if tables.shape[1] > _ENTRIES:
                return _bins(tables, counts)
            order = np.argsort(tables, axis=1)
            values = np.median(np.take_along_axis(tables, order, 1), axis=0)
            return values, np.take_along_axis(counts, order, 1).sum(0)
        (first, *more), kind = weight.weight.stages, weight.weight
        by_rows = not more and kind.blocks == 1 and first.vector == 1 and first.op in _BY_ROWS
        if kind.elements > _WHOLE and not by_rows:
            return None
        sample = np.concatenate([*_sample(decompress(program, weight))])
    # The verdict does not depend on it, and says by itself what is damaged.
    except (ProgramError, ExecutionError):
        return None
    return _bins(sample, np.ones(len(sample)))


def _levels(program: MLModel, weight: ProgramWeight) -> tuple[DoubleArray, Any] | None:
    """Tables `[G, K]` of groups of rows, and how often each entry is used; None for other forms."""
    op = weight.operation
    constants = constants_of(op, weight.producers)
    if op.op != "constexpr_lut_to_dense" or not {"indices", "lut"} <= constants.keys():
        return None
    lut, shape = load(program, constants["lut"]), weight.weight.shape
    if lut.ndim == 1:
        # Before iOS 18 there is one table, and the indices are bytes that hold several.
        data, bits = load(program, constants["indices"]), len(lut).bit_length() - 1
        try:
            indices = Packed(np.ascontiguousarray(data).reshape(-1).view(np.uint8), bits, shape)
        except ValueError:
            return None
        return lut.reshape(1, -1).astype(np.float64), count(indices, 1)
    packed = stored(program, constants["indices"])
    if packed is None or packed.shape != shape or lut.ndim != len(shape) + 2:
        return None
    groups, entries = lut.shape[0], 1 << packed.bits
    if lut.size != groups * entries or lut.shape[-2] != entries or shape[0] % groups:
        return None
    return lut.reshape(groups, entries).astype(np.float64), count(packed, groups)


def _bins(values: DoubleArray, counts: Any) -> tuple[DoubleArray, Any]:
    finite = np.isfinite(values)
    lost = counts[~finite].sum()
    known, weights = values[finite].astype(np.float64), counts[finite]
    if not len(known):
        return np.array([math.nan]), [lost]
    low, high = float(known.min()), float(known.max())
    if low == high:
        middles, found = np.array([low]), np.array([weights.sum()])
    else:
        # In units of the range, which may be too narrow for bins.
        parts = (known - low) / (high - low)
        found, edges = np.histogram(parts, _ENTRIES, (0.0, 1.0), weights=weights)
        middles = low + (edges[:-1] + edges[1:]) / 2 * (high - low)
    return (np.append(middles, math.nan), [*found, lost]) if lost else (middles, found)


def _sample(weight: Any) -> Iterator[Any]:
    height, width = weight.shape[0], max(1, math.prod(weight.shape[1:]))
    rows = min(height, max(1, _SAMPLE // width))
    parts = 1 if rows == height else min(_PARTS, rows)
    size = rows // parts
    for start in np.linspace(0, height - size, parts).astype(int).tolist():
        out = np.empty((size, *weight.shape[1:]), weight.dtype)
        yield read_rows(weight, start, start + size, out).reshape(-1)


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


def measure(
    shard: Shard, artifact: Artifact, program: MLModel, converted: Path | None = None
) -> CompressionMeasurement:
    """Take the census of an artifact that holds `program`, and compare its weights.

    `ProgramError` of impossible weights; arguments and other errors are as of `weights_against`.
    """
    against, weights = weights_against(shard, artifact, program, converted)
    return CompressionMeasurement(
        take_census(program), artifact.size, artifact.record.notes if artifact.record else (),
        weights.distortions, against, weights.missing, weights.extra, weights.changed,
        _others(artifact, program) if shard.function else 0, measure_palettes(program),
    )  # fmt: skip


def _others(artifact: Artifact, function: MLModel) -> int:
    """Bytes of weights that only other functions of a package, or other parts, have."""
    others: dict[tuple[str, Blob], int] = {}
    for model in (*read_functions(artifact.path), function):
        blobs = {(model.weights, blob): size for blob, size in blob_bytes(model).items()}
        if model is function:
            return sum(size for blob, size in others.items() if blob not in blobs)
        others |= blobs
    return 0
