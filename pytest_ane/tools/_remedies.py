"""Suggested compression for a weight that does harm: more bytes, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_ane.make.compress import stored_bytes
from pytest_ane.make.palettize.choose import Uses
from pytest_ane.manifest import Linear, Palettize, Settings, Uncompressed
from pytest_ane.mlprogram.census import Weight
from pytest_ane.mlprogram.records import MLModel

_BITS = (1, 2, 3, 4, 6, 8)
"""Widths of an index that Core ML knows."""
_GROUPS = (32, 16, 8)
_LEFT = 0.1
"""Share of the squared error that restoring takes away and that a remedy may leave."""


@dataclass(frozen=True)
class Remedy:
    """Suggested compression for a weight.

    Attributes:
        settings: as `compression.overrides` would name them.
        error: the shard's, with this weight compressed so and all others as they are.
        more: bytes that it takes beyond those of today.
    """

    settings: Settings
    error: float
    more: int


def find_remedy(
    weight: Weight,
    candidates: Sequence[tuple[int, Settings]],
    *,
    now: float,
    restored: float,
    error: Callable[[Settings], float],
) -> Remedy:
    """The first candidate that leaves a tenth of the squared error that restoring takes away.

    Args:
        weight: as it is stored.
        candidates: bytes on disk and settings; the last of them leaves it uncompressed.
        now: the shard's error as it is.
        restored: the same with this weight exact.
        error: compresses the weight and measures the shard's error.
    """
    limit = accepted(now, restored)
    for size, settings in candidates[:-1]:
        remaining = error(settings)
        if remaining * remaining <= limit:
            return Remedy(settings, remaining, size - weight.compressed_bytes)
    size, settings = candidates[-1]
    return Remedy(settings, restored, size - weight.compressed_bytes)


def accepted(now: float, restored: float) -> float:
    """The squared error of the shard up to which a remedy is accepted.

    Where the error of today is not finite, a tenth above that of the exact weight.
    """
    if not np.isfinite(now):
        return (1 + _LEFT) * restored**2
    return restored**2 + _LEFT * max(now**2 - restored**2, 0.0)


def candidates(weight: Weight, axis: int | None, *, even: bool) -> list[tuple[int, Settings]]:
    """Bytes, and settings that keep more of a weight than today's, by bytes; the last keeps all.

    Args:
        weight: as it is stored.
        axis: of the output channels; None where its uses do not agree.
        even: whether its tables have even steps, so that k-means would do better at no cost.
    """
    finer: list[Settings] = [*_palettes(weight, axis, even=even), *_integers(weight)]
    sized = [(stored_bytes(weight.shape, each, axis or 0), each) for each in finer]
    dense = stored_bytes(weight.shape, Uncompressed())
    worth = [(size, each) for size, each in sized if size < dense]
    return [*sorted(worth, key=itemgetter(0)), (dense, Uncompressed())]


def output_axis(model: MLModel, weight: str, rank: int) -> int | None:
    """The axis of a weight's output channels; None where its uses do not agree on it."""
    uses = Uses(model.main)
    return uses.channels(weight, rank) if weight in uses.ops else None


def _palettes(weight: Weight, axis: int | None, *, even: bool) -> Iterator[Palettize]:
    if len(weight.shape) < 2:
        return
    rows = None if axis is None else weight.shape[axis]
    stage = weight.stages[-1]
    scalar = stage.is_palette and stage.vector == 1 and len(weight.stages) == 1
    bits, tables = (stage.nbits, stage.count) if scalar else (0, 1)
    size = None if tables == 1 or rows is None else rows // tables
    if scalar and even:
        yield _palette(bits, size)
    finer = [s for s in _GROUPS if rows and rows % s == 0 and (size is None or s < size)]
    if scalar:
        yield from (_palette(bits, s) for s in finer)
    for more in [b for b in _BITS if b > (bits if scalar else 3)]:
        yield _palette(more, size)
        yield from (_palette(more, s) for s in finer[:1])


def _palette(bits: int, size: int | None) -> Palettize:
    if size is None:
        return Palettize(mode="kmeans", nbits=bits, granularity="per_tensor")  # type: ignore[arg-type]
    return Palettize(mode="kmeans", nbits=bits, group_size=size)  # type: ignore[arg-type]


def _integers(weight: Weight) -> Iterator[Linear]:
    """Integers of 8 bits, each channel with a scale, for what has fewer of either."""
    stage = weight.stages[-1]
    if stage.is_quantization and len(weight.shape) > 1 and (stage.nbits < 8 or stage.count == 1):
        yield Linear(dtype="int8", granularity="per_channel")


def has_even_steps(tables: Any) -> bool:
    """Whether palettes `[..., 2^n, 1]` are evenly spaced, up to the rounding of fp16."""
    values = np.asarray(tables, np.float64)
    flat = values.reshape(-1, values.shape[-2] if values.ndim > 1 else values.shape[-1])
    if not np.isfinite(flat).all():
        return False
    steps = np.diff(flat, axis=1)
    span = np.abs(flat).max(axis=1, initial=0.0)
    return bool((np.ptp(steps, axis=1) <= 2**-9 * span).all()) if steps.size else False
