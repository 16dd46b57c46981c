"""Palettes of one weight: tables of values and packed indices, found group by group in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ane.make.palettize import kmeans, patterns
from pytest_ane.make.palettize.patterns import Indices, Patterns
from pytest_ane.mlprogram.arrays import Array, FloatArray, HalfArray

Rows = npt.NDArray[np.float64]
Mode: TypeAlias = Literal["kmeans", "uniform", "unique"]

NBITS = (1, 2, 3, 4, 6, 8)
"""The widths of an index that Core ML knows."""
_CHUNK = 1 << 20
"""Weights of a task, about. Tasks do not depend on the number of threads, nor do results."""


@dataclass(frozen=True, eq=False)
class Palettes:
    """A weight's palettes.

    Attributes:
        luts: fp16 `[groups, 2^nbits]`, ascending; zeros follow where values are fewer.
        indices: uint8 of the weight's shape.
        axis: along which the groups lie.
    """

    luts: HalfArray
    indices: Indices
    axis: int

    @property
    def nbits(self) -> int:
        """Bits of an index."""
        return int(self.luts.shape[1]).bit_length() - 1

    def values(self) -> FloatArray:
        """The weight that they stand for, float32."""
        moved = np.swapaxes(self.indices, 0, self.axis)
        values = np.empty(moved.shape, np.float32)
        groups = len(self.luts)
        for table, rows, out in zip(
            self.luts.astype(np.float32),
            np.split(moved, groups),
            np.split(values, groups),
            strict=True,
        ):
            np.take(table, rows, out=out)
        return np.ascontiguousarray(np.swapaxes(values, 0, self.axis))

    def errors(self, weight: HalfArray, threads: int) -> Rows:
        """Squared error of each row of the weight that was palettized, float64 `[rows]`."""
        height = len(weight)
        if self.axis:
            with np.errstate(over="ignore", invalid="ignore"):
                lost = np.square(self.values() - weight.astype(np.float32))
            return np.asarray(lost.reshape(height, -1).sum(1, np.float64))
        shape = len(self.luts), -1
        rows = np.ascontiguousarray(weight).view(np.ndarray).reshape(shape).view(np.uint16)
        rows.setflags(write=False)
        errors = np.zeros((len(self.luts), height // len(self.luts)))
        luts, indices = self.luts.astype(np.float32), self.indices.reshape(rows.shape)
        for _ in _Tasks(rows, threads).run(kmeans.row_errors, luts, indices, errors):
            pass
        return errors.reshape(-1)

    def widened(self, nbits: int) -> Palettes:
        """The same with indices of more bits; zeros fill the tables up."""
        luts = np.zeros((len(self.luts), 1 << nbits), np.float16)
        luts[:, : self.luts.shape[1]] = self.luts
        return replace(self, luts=luts)


def default_threads() -> int:
    """The number of threads that the user or the plugin chose for arithmetic; all cores if none."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else os.cpu_count() or 1


def find_palettes(
    weight: HalfArray, mode: Mode, nbits: int, *, groups: int, axis: int, threads: int
) -> Palettes:
    """Palettes for groups of a weight's channels.

    Args:
        weight: fp16, any shape.
        mode: `kmeans` has the least sum of squared errors there is, before tables are rounded to
            fp16; `uniform` has even steps, and the same bits as coremltools' own; `unique` is
            lossless and finds the number of bits itself.
        nbits: of an index; not used by `unique`.
        groups: number of palettes; divides the channels.
        axis: of the channels.
        threads: at most so many at once; results do not depend on it.

    Raises:
        ValueError: a weight is NaN or infinite, a group spans more than fp16 holds (`uniform`), or
            a group has more than 256 distinct values (`unique`); the text ends a sentence.
    """
    moved = np.swapaxes(weight, 0, axis)
    rows = np.ascontiguousarray(moved).view(np.ndarray).reshape(groups, -1).view(np.uint16)
    # Writable arrays would be another type, for which everything is compiled again.
    rows.setflags(write=False)
    tasks = _Tasks(rows, threads)
    if mode == "uniform":
        luts, indices = _uniform(tasks, nbits)
    else:
        luts, indices = _kmeans(tasks, nbits if mode == "kmeans" else _needed(tasks))
    return Palettes(luts, np.swapaxes(indices.reshape(moved.shape), 0, axis), axis)


def palette(weights: Array, nbits: int) -> tuple[HalfArray, Indices]:
    """The best palette of 2^nbits fp16 values, in the form of coremltools' `lut_function`.

    Args:
        weights: any shape, not empty; taken as the fp16 values they are stored as.
        nbits: 1 to 8.

    Returns:
        `lut` float16 `[2^nbits]` and `indices` uint8 of the size of `weights`, flat.

    Raises:
        ValueError: a weight is NaN, or infinite in fp16.
    """
    with np.errstate(over="ignore"):
        stored = weights.astype(np.float16)
    palettes = find_palettes(stored, "kmeans", nbits, groups=1, axis=0, threads=1)
    return palettes.luts[0], palettes.indices.reshape(-1)


def pack(indices: Indices, nbits: int, threads: int) -> Indices:
    """Indices in the order they lie in memory, as bits, lowest first."""
    flat = np.ascontiguousarray(indices).reshape(-1)
    if nbits == 8:
        return flat
    packed = np.empty(-(-flat.size * nbits // 8), np.uint8)

    def task(start: int) -> None:
        part = slice(start * nbits // 8, (start + _CHUNK) * nbits // 8)
        patterns.pack(flat[start : start + _CHUNK], nbits, packed[part])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(task, range(0, flat.size, _CHUNK)))
    return packed


class _Tasks:
    """Groups, some at a time: `rows` is uint16 `[groups, size]`, patterns of fp16 weights."""

    def __init__(self, rows: Patterns, threads: int) -> None:
        self.rows, self.threads = rows, threads

    def run(self, kernel: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """A kernel's results; of arrays among its arguments it gets the rows of its groups."""
        count, size = self.rows.shape
        step = max(1, _CHUNK // size)

        def task(first: int) -> Any:
            part = slice(first, first + step)
            own = (a[part] if isinstance(a, np.ndarray) else a for a in arguments)
            return kernel(self.rows[part], *own)

        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(task, range(0, count, step))


def _kmeans(tasks: _Tasks, nbits: int) -> tuple[HalfArray, Indices]:
    luts = np.zeros((len(tasks.rows), 1 << nbits))
    indices = np.empty(tasks.rows.shape, np.uint8)
    if not all(tasks.run(kmeans.kmeans, luts, indices)):
        raise ValueError("holds a NaN or an infinity")
    return luts.astype(np.float16), indices


def _needed(tasks: _Tasks) -> int:
    """The least number of bits that holds all values of every group."""
    counts = list(tasks.run(kmeans.distinct, 1 << NBITS[-1]))
    if min(counts) < 0:
        raise ValueError("holds a NaN or an infinity")
    for nbits in NBITS:
        if max(counts) <= 1 << nbits:
            return nbits
    raise TooManyValues("has a group of more than 256 distinct values")


class TooManyValues(ValueError):
    """A weight that `unique` declines."""


def _uniform(tasks: _Tasks, nbits: int) -> tuple[HalfArray, Indices]:
    """As `_get_lut_and_indices` in coremltools 9.0, optimize/coreml/_quantization_passes.py."""
    steps = (1 << nbits) - 1
    ends = np.empty((len(tasks.rows), 2))
    indices = np.empty(tasks.rows.shape, np.uint8)
    fits = all(tasks.run(patterns.uniform, steps, ends, indices))
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = ends.astype(np.float16).T[:, :, None]
        luts = np.arange(1 << nbits) * ((high - low) / steps).astype(np.float64) + low
        rounded = luts.astype(np.float16)
    if not fits or not np.isfinite(rounded).all():
        raise ValueError("holds a NaN, an infinity, or values too large for even steps in fp16")
    return rounded, indices
