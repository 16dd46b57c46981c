"""What a file tells of its own compression: how it was made, and how much that can lose at most.

Nobody needs the weights before compression for that: the entries of a table lie so far apart, and
integers are a scale apart, so that no value was rounded by more than half of it. A weight with rows
that are off by far more was damaged, or another program was compressed; which, often shows: a layer
is transposed, holds another one's weight, or its rows are in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.manifest import Linear, Palettize, Step
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import Array, DoubleArray, FloatArray
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.pairing import WeightPair, same_values
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


_LAYERS = {"conv", "conv_transpose", "einsum", "gather", "gru", "linear", "lstm", "matmul", "rnn"}
_FAR = 16.0
"""Times the square that compression may lose of a row."""
_STEPS = 2.0
"""Steps of fp16 that converters may round a constant otherwise by."""
_LARGEST = 1 << 26
"""Elements of the largest weight that is looked at; the compression gate judges every one."""
_ROWS, _NAMED = 64, 3
"""Rows that are looked for among the others, and how many are named."""


def foreign_weights(pairs: Sequence[WeightPair]) -> dict[str, str]:
    """What became of weights that are others than in the uncompressed program, by name.

    `wrong function: q_weight is that of {plain} transposed`; `{plain}` stands for that program's
    name. Layers' weights of several stages, of vectors and of more than 67 million elements are
    left to the compression gate.
    """
    known = [(pair, *_values(pair)) for pair in pairs if pair.weight.elements <= _LARGEST]
    found = {}
    for pair, stored, exact in known:
        allowed = _allowed(pair.weight, stored)
        if (off := _lost(stored, exact) > allowed).any():
            others = {p.name: x for p, _, x in known if p is not pair and x.shape == exact.shape}
            found[pair.name] = _said(pair.name, stored, exact, allowed, off, others)
    return found


def is_layer(weight: Weight) -> bool:
    """Whether an operation takes it that has weights; a mask, or a table of angles, is none."""
    return not _LAYERS.isdisjoint(weight.op_types)


def _values(pair: WeightPair) -> tuple[FloatArray, FloatArray]:
    """Stored and exact values; pruning may leave out any value of a layer, but not all of them."""
    stored, exact = (np.asarray(values, np.float32) for values in (pair.stored, pair.exact))
    pruned = any(stage.op == SPARSE for stage in pair.weight.stages)
    if pruned and is_layer(pair.weight) and stored.any():
        exact = np.where(stored == 0, np.float32(0), exact)
    return stored, exact


def _lost(stored: FloatArray, exact: FloatArray) -> DoubleArray:
    """Squared error of each row, along the first axis; of what is the same infinity nothing."""
    with np.errstate(all="ignore"):
        lost = np.where(same_values(stored, exact), 0, stored - exact)
        return np.asarray(np.square(lost, dtype=np.float64).reshape(len(lost), -1).sum(1))


def _allowed(weight: Weight, stored: FloatArray) -> DoubleArray:
    """Squares that a row's values may be off by for rounding and compression."""
    rows, layer = stored.reshape(len(stored), -1).astype(np.float64), is_layer(weight)
    size = np.minimum(np.abs(rows), fp16.MAX)
    least = np.square(_STEPS * fp16.EPSILON * size).sum(1) + rows.shape[1] * fp16.SMALLEST**2
    if not weight.stages:
        return np.asarray(least)
    if layer and (len(weight.stages) > 1 or weight.stages[0].vector > 1):
        return np.full(len(rows), np.inf)
    lost = np.square(spread(weight, stored)[0], dtype=np.float64).reshape(len(rows), -1).sum(1)
    if weight.stages[0].is_quantization:
        lost = np.maximum(lost, rows.shape[1] * np.square(_scales(weight.stages[0], rows)) / 12)
    if layer:  # Of a row of few values nobody knows how far it was rounded, unless it is zero.
        lost[(lost == 0) & rows.any(1)] = np.inf
    return np.asarray(_FAR * lost + least)


def _scales(stage: Stage, rows: DoubleArray) -> DoubleArray:
    """The least scale of each row: integers of so many bits reach its largest value, an outlier."""
    groups = stage.groups if stage.groups and len(rows) % stage.groups == 0 else 1
    largest = np.abs(rows).reshape(groups, -1).max(1) / 2 ** (stage.nbits - 1)
    return np.asarray(largest.repeat(len(rows) // groups))


def _said(
    name: str,
    stored: FloatArray,
    exact: FloatArray,
    allowed: DoubleArray,
    off: npt.NDArray[np.bool_],
    others: Mapping[str, FloatArray],
) -> str:
    for how, values in _turned(exact):
        if values.shape == stored.shape and not (_lost(stored, values) > allowed).any():
            return f"wrong function: {name} is that of {{plain}} {how}"
    for other, values in others.items():
        if not (_lost(stored, values) > allowed).any():
            return f"wrong function: {name} holds {other} of {{plain}}"
    rows = np.flatnonzero(off)
    where = "all over" if off.all() else f"in {_listed(rows)}"
    a, b = (x.reshape(len(x), -1)[rows] for x in (stored, exact))
    with np.errstate(all="ignore"):
        gain = float((a * b).sum() / np.square(b).sum())
        scaled = not (_lost(a, np.float32(gain) * b) > allowed[rows]).any()
    if not a.any():
        what = f"{name} is zero, and not in {{plain}},"
    elif moved := _moved(stored, exact, allowed, rows):
        what = f"{name} has {moved} of {{plain}}"
    elif scaled:
        what = f"{name} is {gain:.3g} times that of {{plain}}"
    else:
        what = f"no compression makes {name} of that of {{plain}}"
    return f"another program's weights, or damaged: {what} {where}"


def _turned(exact: FloatArray) -> Iterator[tuple[str, Array]]:
    for axes in [*permutations(range(exact.ndim))][1:]:
        yield "transposed", exact.transpose(axes)
    for axis in range(exact.ndim):
        yield "reversed", np.flip(exact, axis)


def _moved(
    stored: FloatArray, exact: FloatArray, allowed: DoubleArray, rows: npt.NDArray[np.int64]
) -> str:
    """Which rows of the uncompressed program these are, where each is one of them."""
    some = rows[:_ROWS]
    mine, every = stored.reshape(len(stored), -1)[some], exact.reshape(len(exact), -1)
    with np.errstate(all="ignore"):
        nearest = (np.square(every).sum(1) - 2 * mine @ every.T).argmin(1)
    same = exact.ndim > 1 and not (_lost(mine, every[nearest]) > allowed[some]).any()
    return _listed(nearest) if same else ""


def _listed(rows: npt.NDArray[np.int64]) -> str:
    first, last = int(rows[0]), int(rows[-1])
    if len(rows) == 1:
        return f"row {first}"
    if np.array_equal(rows, np.arange(first, last + 1)):
        return f"rows {first} to {last}"
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"rows {', '.join(map(str, rows[:_NAMED].tolist()))}{more}"
