"""What a file tells of its own compression: how it was made, and how much that can lose at most.

Nobody needs the weights before compression for that: the entries of a table lie so far apart, and
integers are a scale apart, so that no value was rounded by more than half of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pytest_ane.manifest import Linear, Palettize, Step
from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import SPARSE, ProgramWeight, Stage, Weight, constants_of

_EVEN, _MOST = 0.02, 0.8
"""Deviation of a table's steps from their median, besides a step of fp16, of which those of 8 bits
have 8 to 16, up to which they are even; and the share of them that has to be."""
_TAIL = 1.5
"""Steps, of a table by k-means, that its ends stand for: what is beyond them as well. Of normal
values 1.46, from 2 to 8 bits."""
_EXACT = 4
"""Fewer values than that were not rounded, where there could be more: a mask of 0 and -1e4."""
_DENSE = 0.93
"""What k-means loses of that, for its entries lie closer where more values are; 4 and 6 bits."""


def stored_steps(model: MLModel, weight: ProgramWeight) -> tuple[Step, ...]:
    """How a weight was compressed, as a manifest would say it; nothing where that is not known.

    That is so of zeros that are left out, of tables of vectors, with scales or of integers, and of
    tables of two entries, which are even whoever made them.
    """
    stages = weight.weight.stages
    if len(stages) != 1 or stages[0].vector > 1 or len(weight.weight.shape) < 2:
        return ()
    (stage,) = stages
    grouped = stage.count > 1
    if stage.is_palette and stage.nbits > 1:
        kind = "per_grouped_channel" if grouped else "per_tensor"
        mode = "uniform" if _is_even(model, weight) else "kmeans"
        return (Palettize.model_construct(mode=mode, nbits=stage.nbits, granularity=kind),)
    if not stage.is_quantization or stage.nbits not in (4, 8):
        return ()
    kind = "per_block" if stage.blocks > 1 else "per_channel" if grouped else "per_tensor"
    offset = {"offset", "zero_point"} & constants_of(weight.operation, weight.producers).keys()
    mode = "linear" if offset else "linear_symmetric"
    dtype = f"{'u' * bool(offset)}int{stage.nbits}"
    return (Linear.model_construct(mode=mode, dtype=dtype, granularity=kind),)


def _is_even(model: MLModel, weight: ProgramWeight) -> bool:
    """Whether entries are evenly spaced in most tables; those of damaged ones may not be."""
    lut = constants_of(weight.operation, weight.producers).get("lut")
    if lut is None:
        return False
    tables = load(model, lut).astype(np.float64)
    tables = np.sort(tables.reshape(-1, tables.shape[-2] if tables.ndim > 1 else tables.size), 1)
    return bool(np.median([even_step(table) > 0 for table in tables]))


def even_step(entries: DoubleArray | FloatArray) -> float:
    """The step of ascending entries that are evenly spaced, but for fp16; 0 where they are not."""
    gaps = np.diff(entries.astype(np.float64))
    step = float(np.median(gaps)) if gaps.size else 0.0
    rounding = np.spacing(np.abs(entries).astype(np.float16)).astype(np.float64)
    even = np.abs(gaps - step) <= _EVEN * step + np.maximum(rounding[:-1], rounding[1:])
    return step if even.mean() >= _MOST else 0.0


def spread(kind: Weight, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What rounding each of a compressed weight's values may have lost: root mean square, and mean.

    Of a table the distance of the entries about a value over sqrt(12); of integers their scale over
    sqrt(12); of zeros that were left out the smallest value that was kept, over sqrt(3); of several
    stages the root of the sum of squares. The mean has the values' sign: they were so much smaller.
    """
    whole, mean = np.zeros(values.shape, np.float32), np.zeros(values.shape, np.float32)
    for stage in (s for s in kind.stages if not s.of_table):
        if stage.op == SPARSE:
            kept = np.abs(values[values != 0])
            smallest = float(kept.min()) if kept.size else 0.0
            whole += np.where(values == 0, np.float32(smallest**2 / 3), 0).astype(np.float32)
        elif stage.is_palette or stage.is_quantization:
            for part in _parts(values.shape, stage, last="matmul" in kind.op_types):
                steps, nearer = _steps(values[part], stage)
                whole[part] += np.square(steps) / np.float32(12)
                mean[part] += np.float32(nearer) * values[part]
    return np.sqrt(whole), mean


def _parts(shape: tuple[int, ...], stage: Stage, *, last: bool) -> Iterator[Any]:
    """Where a weight has each of its tables or scales: along the first axis, and one other."""
    grid = [1] * len(shape)
    grid[0] = stage.groups if stage.groups and shape[0] % stage.groups == 0 else 1
    other = -1 if last else 1
    if len(shape) > 1 and stage.blocks > 1 and shape[other] % stage.blocks == 0:
        grid[other] = stage.blocks
    for at in np.ndindex(*grid):
        yield tuple(
            slice(i * (n // parts), (i + 1) * (n // parts))
            for i, n, parts in zip(at, shape, grid, strict=True)
        )


def _steps(values: FloatArray, stage: Stage) -> tuple[FloatArray, float]:
    """How far apart the values that are stored lie about each; how much nearer to zero they were.

    That is a share of them all: nothing of a table by k-means, whose entries are means.
    """
    entries, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    if len(entries) < min(_EXACT, 2**stage.nbits):
        return np.zeros(values.shape, np.float32), 0.0
    gaps = np.diff(entries)
    if stage.is_quantization:  # Integers that no value has are left out: steps are equal.
        step = _common(gaps)
        return np.full(values.shape, step, np.float32), _nearer(entries, counts, step)
    steps = np.concatenate([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
    if step := even_step(entries):
        steps[:] = step
    else:
        steps[[0, -1]] *= _TAIL
        steps *= _DENSE * np.sqrt(1 - 1 / counts)  # A mean of few is near all of them.
    at = np.clip(np.searchsorted(entries, values), 0, len(entries) - 1)
    return np.asarray(steps[at], np.float32), _nearer(entries, counts, step) if step else 0.0


def _nearer(entries: FloatArray, counts: Any, step: float) -> float:
    """How much nearer to zero than even entries lay what they stand for.

    Where their density is f, what an entry x stands for lies on average step^2 / 12 times
    f'(x) / f(x) beside it. The mean of that times x is, by parts, step^2 / 12 times x f(x) at both
    ends, less one: nothing of uniform weights, and of normal ones as much as their variance lost.
    """
    x, n = entries.astype(np.float64), counts / counts.sum()
    ends = ((x[-1] + step / 2) * n[-1] - (x[0] - step / 2) * n[0]) / step
    return float(step**2 / 12 / (x**2 @ n) * np.clip(1 - ends, 0, 1))


def _common(gaps: FloatArray) -> float:
    """The step of which all gaps are multiples, but for rounding to fp16."""
    step = float(gaps.min())
    for parts in range(1, 9):
        multiples = gaps / (step / parts)
        if np.abs(multiples - np.rint(multiples)).max() < 0.1:
            return step / parts
    return step
