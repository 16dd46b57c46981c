"""Weights of a package that no compression makes of those of its uncompressed program.

Rounding moves a value by less than the entries of its table, or its scale, lie apart. A weight with
rows that are off by far more was damaged, or another program was compressed; which, often shows:
a layer is transposed, holds another one's weight, or its rows are in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from pytest_ane.make.stored import spread
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.pairing import WeightPair, same_values
from pytest_ane.mlprogram.weights import SPARSE, Stage, Weight

_LAYERS = {"conv", "conv_transpose", "einsum", "gather", "gru", "linear", "lstm", "matmul", "rnn"}
_FAR = 16.0
"""Times the square that compression may lose of a row."""
_STEPS = 2.0
"""Steps of fp16 that converters may round a constant otherwise by."""
_LARGEST = 1 << 26
"""Elements of the largest weight that is looked at; the compression gate judges every one."""
_ROWS, _NAMED = 64, 3
"""Rows that are looked for among the others, and how many are named."""
Rows = npt.NDArray[np.float64]


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


def _lost(stored: FloatArray, exact: FloatArray) -> Rows:
    """Squared error of each row, along the first axis; of what is the same infinity nothing."""
    with np.errstate(all="ignore"):
        lost = np.where(same_values(stored, exact), 0, stored - exact)
        return np.asarray(np.square(lost, dtype=np.float64).reshape(len(lost), -1).sum(1))


def _allowed(weight: Weight, stored: FloatArray) -> Rows:
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


def _scales(stage: Stage, rows: Rows) -> Rows:
    """The least scale of each row: integers of so many bits reach its largest value, an outlier."""
    groups = stage.groups if stage.groups and len(rows) % stage.groups == 0 else 1
    largest = np.abs(rows).reshape(groups, -1).max(1) / 2 ** (stage.nbits - 1)
    return np.asarray(largest.repeat(len(rows) // groups))


def _said(
    name: str,
    stored: FloatArray,
    exact: FloatArray,
    allowed: Rows,
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
    what = _content(name, stored, exact, allowed, rows)
    return f"another program's weights, or damaged: {what} {where}"


def _content(
    name: str, stored: FloatArray, exact: FloatArray, allowed: Rows, rows: npt.NDArray[np.int64]
) -> str:
    a, b = (x.reshape(len(x), -1)[rows] for x in (stored, exact))
    if not a.any():
        return f"{name} is zero, and not in {{plain}},"
    if moved := _moved(stored, exact, allowed, rows):
        return f"{name} has {moved} of {{plain}}"
    with np.errstate(all="ignore"):
        gain = float((a * b).sum() / np.square(b).sum())
        off = _lost(a, np.float32(gain) * b) > allowed[rows]
    if not off.any():
        return f"{name} is {gain:.3g} times that of {{plain}}"
    return f"no compression makes {name} of that of {{plain}}"


def _turned(exact: FloatArray) -> Iterator[tuple[str, Array]]:
    for axes in [*permutations(range(exact.ndim))][1:]:
        yield "transposed", exact.transpose(axes)
    for axis in range(exact.ndim):
        yield "reversed", np.flip(exact, axis)


def _moved(
    stored: FloatArray, exact: FloatArray, allowed: Rows, rows: npt.NDArray[np.int64]
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
