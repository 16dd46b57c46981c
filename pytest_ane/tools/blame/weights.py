"""Remedies for weights whose compression does harm: more bytes, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from pytest_ane.make.compress import stored_bytes
from pytest_ane.manifest import Linear, Palettize, Settings, Uncompressed
from pytest_ane.mlprogram.weights import Weight

_BITS = (1, 2, 3, 4, 6, 8)
"""Widths of an index that Core ML knows."""
_GROUPS = (32, 16, 8)
_LEFT = 0.1
"""Share of the squared error that restoring takes away and that a remedy may leave."""


@dataclass(frozen=True)
class Remedy:
    """Suggested compression for a weight, as `compression.overrides` would name it.

    `error` is the shard's with all others as they are, `more` the bytes beyond those of today.
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

    Of an error that is not finite, one that leaves a tenth more than the exact weight. Candidates
    are bytes on disk and settings, of which the last leave it uncompressed; `now` is the shard's
    error as it is, `restored` that with this weight exact, `error` measures it with others.
    """
    gone = now**2 - restored**2 if np.isfinite(now) else restored**2
    limit = restored**2 + _LEFT * max(gone, 0.0)
    *finer, (dense, uncompressed) = candidates
    for size, settings in finer:
        left = error(settings)
        if left * left <= limit:
            return Remedy(settings, left, size - weight.compressed_bytes)
    return Remedy(uncompressed, restored, dense - weight.compressed_bytes)


def candidates(weight: Weight, axis: int | None) -> list[tuple[int, Settings]]:
    """Bytes, and settings that may keep more than today's, by bytes; the last keeps all.

    Palettes by k-means of today's size come first: today's may have even steps. `axis` is that of
    the output channels; None where the weight's uses do not agree.
    """
    finer: list[Settings] = [*_palettes(weight, axis)]
    stage = weight.stages[-1]
    # Integers of 8 bits, each channel with a scale, for what has fewer of either.
    if stage.is_quantization and len(weight.shape) > 1 and (stage.nbits < 8 or stage.count == 1):
        finer.append(Linear(dtype="int8", granularity="per_channel"))
    sized = [(stored_bytes(weight.shape, each, axis or 0), each) for each in finer]
    dense = stored_bytes(weight.shape, Uncompressed())
    worth = [(size, each) for size, each in sized if size < dense]
    return [*sorted(worth, key=itemgetter(0)), (dense, Uncompressed())]


def _palettes(weight: Weight, axis: int | None) -> Iterator[Palettize]:
    if len(weight.shape) < 2:
        return
    rows = None if axis is None else weight.shape[axis]
    stage = weight.stages[-1]
    scalar = stage.is_palette and stage.vector == 1 and len(weight.stages) == 1
    bits, tables = (stage.nbits, stage.count) if scalar else (3, 1)
    size = None if tables == 1 or rows is None else rows // tables
    finer = [s for s in _GROUPS if rows and rows % s == 0 and (size is None or s < size)]
    if scalar:
        yield from (_palette(bits, s) for s in (size, *finer))
    for more in [b for b in _BITS if b > bits]:
        yield from (_palette(more, s) for s in (size, *finer[:1]))


def _palette(bits: Any, size: int | None) -> Palettize:
    if size is None:
        return Palettize(mode="kmeans", nbits=bits, granularity="per_tensor")
    return Palettize(mode="kmeans", nbits=bits, group_size=size)
