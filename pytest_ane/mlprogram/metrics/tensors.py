"""Two tensors compared: cosine and contribution by position, relative and absolute errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import Array, BoolArray, DoubleArray

_ROUNDING = 1e-6
_CLEAR = 8.0
"""How many times what rounding takes one side must add where the other adds nothing."""


class Zeros(NamedTuple):
    """Masks `[T]` of rows that are zero on both sides and on one side only; all others are live."""

    both: BoolArray
    one: BoolArray

    @property
    def live(self) -> BoolArray:
        """Mask `[T]` of rows that have a direction on both sides."""
        return ~(self.both | self.one)


def zeros(a: Array, b: Array, input_max: float) -> Zeros:
    """Which rows of two `[T, C]` arrays are (near) zero.

    Near zero is a row whose largest magnitude is at most 2^-24 max(1, input_max): an expert's
    weight of 1e-9 is a number in float32 and zero in fp16, and terms as large as the input that
    cancel leave so much behind in float32. A row is zero on one side only if the other side's is
    above twice that, so that no row stands on the edge. NaN is never zero.
    """
    near = fp16.SMALLEST * (max(1.0, min(input_max, fp16.MAX)) if np.isfinite(input_max) else 1.0)
    x, y = _largest(a), _largest(b)
    some = (x <= near) | (y <= near)
    both = some & (x <= 2 * near) & (y <= 2 * near)
    return Zeros(both, some & ~both)


def cosine(a: Array, b: Array) -> DoubleArray:
    """a.b / (|a| |b|) for each row of two `[T, C]` arrays, in float64; `[T]`.

    NaN where a row has a non-finite value or is all zero: the angle is undefined, and a
    comparison `cosine >= threshold` is then false, never true. Rows are scaled by their largest
    magnitude first, so that no finite value overflows.
    """
    check_shapes(a, b)
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = (x / _largest(x)[:, None] for x in (a.astype(np.float64), b.astype(np.float64)))
        angle = _dots(a, b) / (np.sqrt(_dots(a, a)) * np.sqrt(_dots(b, b)))
        return np.asarray(np.clip(angle, -1.0, 1.0))


class Contributions(NamedTuple):
    """The contributions of `[T, C]` outputs, by row.

    Attributes:
        cosines: `[T]`; NaN where a value is not finite or only one side adds anything.
        idle: `[T]`, rows to which neither side adds anything that fp16 can tell from the residual.
        ratios: `[T]`, |residual| / |contribution| of the reference: how much the residual hides.
        single: `[T]`, rows to which one side alone adds anything; of a path that is known.
    """

    cosines: DoubleArray
    idle: BoolArray
    ratios: DoubleArray
    single: BoolArray


def contributions(a: Array, b: Array, residual: Array) -> Contributions:
    """Cosines of (a - residual) and (b - residual); differences are taken in float64.

    A transformer's shard returns x + f(x), and its cosine is that of x with itself where |x| is
    large: of |x| = 20 |f| a contribution at 0.95 shows as 0.9999.

    A row is idle if every value that is added is at most 2^-10 of the residual's own (and 2^-24,
    fp16's smallest number), or on one side twice that: it is lost in the rounding of the sum. Where
    the other side's norm is above eight times that of what is lost, only one side adds anything.
    """
    check_shapes(a, b, residual)
    path = np.asarray(residual, np.float64)
    with np.errstate(invalid="ignore"):
        x, y = np.asarray(a, np.float64) - path, np.asarray(b, np.float64) - path
    lost = np.maximum(fp16.EPSILON * np.abs(path), fp16.SMALLEST)
    compared = _compared(x, y, path, lost)
    single = _single(x, y, lost) | _single(y, x, lost)
    return compared._replace(cosines=np.where(single, np.nan, compared.cosines), single=single)


def contributions_off_input(a: Array, b: Array, x: Array) -> Contributions:
    """`contributions` where the residual path is unknown: outputs less their part along the input.

    a - (a.x / x.x) x, and b likewise: all that is known of a path that may scale the input. What
    the shard itself adds along x is taken out with it.
    """
    check_shapes(a, b, x)
    a, b, x = (np.asarray(array, np.float64) for array in (a, b, x))
    part, path = along(a, x), along(b, x)
    with np.errstate(invalid="ignore"):
        lost = np.maximum(fp16.EPSILON * np.abs(path), fp16.SMALLEST)
        return _compared(a - part, b - path, path, lost)


def along(y: Array, x: Array) -> DoubleArray:
    """The component of each row of y `[T, C]` along that of x; of a row of zeros nothing."""
    y, x = np.asarray(y, np.float64), np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        squares = _dots(x, x)
        share = _dots(y, x) / np.where(squares == 0, 1.0, squares)
        return np.asarray(share[:, None] * x)


def is_cosine(value: float) -> bool:
    """Whether a number may be a cosine: in -1..1 but for rounding, or NaN for an undefined one."""
    return math.isnan(value) or abs(value) <= 1 + _ROUNDING


def check_shapes(*arrays: Array) -> None:
    """Raise `ValueError` where the shapes differ: numpy would compare one row with many."""
    if len({array.shape for array in arrays}) > 1:
        raise ValueError(f"cannot compare {' with '.join(str(a.shape) for a in arrays)}")


def _dots(a: DoubleArray, b: DoubleArray) -> DoubleArray:
    return np.asarray(np.einsum("tc,tc->t", a, b))


def _compared(
    x: DoubleArray, y: DoubleArray, path: DoubleArray, lost: DoubleArray
) -> Contributions:
    with np.errstate(invalid="ignore", divide="ignore"):
        x_lost, y_lost = _largest(x / lost), _largest(y / lost)
        idle = (np.minimum(x_lost, y_lost) <= 1) & (np.maximum(x_lost, y_lost) <= 2)
        ratios = np.linalg.norm(path, axis=1) / np.linalg.norm(y, axis=1)
    return Contributions(cosine(x, y), idle, ratios, np.zeros(len(x), np.bool_))


def _single(x: DoubleArray, y: DoubleArray, lost: DoubleArray) -> BoolArray:
    """Rows where all of x is lost, and y clearly is not."""
    with np.errstate(invalid="ignore"):
        clear = np.linalg.norm(y, axis=1) > _CLEAR * np.linalg.norm(lost, axis=1)
        return np.asarray((_largest(x / lost) <= 1) & clear)


def _largest(x: Array) -> DoubleArray:
    return np.asarray(np.abs(x).max(axis=1, initial=0.0))


_NOISE = 1e-6
"""Below it a relative error is what float32 rounds, and other on each processor."""


def relative_l2(a: Array, b: Array) -> DoubleArray:
    """|a - b| / |b| in Euclidean norms for each row of `[T, C]` against a reference; `[T]`.

    In float64 (Golub and Van Loan, Matrix Computations, 4th ed., section 2.2.3). NaN where a value
    is NaN, the reference is not finite, or both rows are zero; infinite where only the reference is
    zero or the row is infinite: no bound from above is then kept. Each pair of rows is scaled by
    its largest magnitude first, so that no finite value overflows.
    """
    check_shapes(a, b)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    largest, reference = _largest(a), _largest(b)
    scale = np.maximum(largest, reference)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = a / scale, b / scale
        relative: DoubleArray = np.sqrt(_dots(a - b, a - b)) / np.sqrt(_dots(b, b))
    # An infinite row divided by itself is NaN; its distance from a finite one is infinite.
    relative[np.isinf(largest) & np.isfinite(reference)] = np.inf
    return relative


def in_words(relative: float, digits: int = 3) -> str:
    """A relative error for people; `under 1e-06` for what is float32's own rounding."""
    if math.isnan(relative):
        return "NaN"
    return f"under {_NOISE:g}" if 0 < relative < _NOISE else f"{relative:.{digits}g}"


def worst_abs_error(a: Array, b: Array) -> float:
    """Greatest |a - b| of two `[T, C]` arrays, neither empty, in float64; NaN if any is."""
    check_shapes(a, b)
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def finite_fraction(x: Array) -> float:
    """Share of values that are neither NaN nor infinite, 0 to 1; 0.0 for an empty array.

    An empty output holds no evidence, so it does not count as finite.
    """
    return float(np.isfinite(x).mean()) if x.size else 0.0
