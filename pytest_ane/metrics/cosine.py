"""Cosine similarity: of rows, of everything, of groups of channels; and rows without one."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_ane.core import fp16
from pytest_ane.core.arrays import Array, BoolArray, DoubleArray

_ROUNDING = 1e-6


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
    x, y = (np.abs(side).max(axis=1, initial=0.0) for side in (a, b))
    some = (x <= near) | (y <= near)
    both = some & (x <= 2 * near) & (y <= 2 * near)
    return Zeros(both, some & ~both)


def cosine(a: Array, b: Array) -> DoubleArray:
    """a.b / (|a| |b|) for each row of two `[T, C]` arrays, in float64; `[T]`.

    NaN where a row has a non-finite value or is all zero: the angle is undefined, and a
    comparison `cosine >= threshold` is then false, never true. Rows are scaled by their largest
    magnitude first, so that no finite value overflows.

    Raises:
        ValueError: the shapes differ; numpy would otherwise compare one row with many.
    """
    check_shapes(a, b)
    a, b = _scaled(a), _scaled(b)
    return _angle(_dots(a, b), _dots(a, a), _dots(b, b))


def group_products(a: Array, b: Array, size: int) -> DoubleArray:
    """a.b, a.a and b.b of each `size` channels over all rows of `[T, C]`; `[3, ceil(C / size)]`.

    They add up: over blocks of rows, and over groups to those of everything. The last group may be
    smaller. Values of float32, whose squares float64 holds, are expected.

    Raises:
        ValueError: the shapes differ.
    """
    check_shapes(a, b)
    starts = np.arange(0, a.shape[1], size)
    if not starts.size:
        return np.zeros((3, 0))
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        sums = [np.einsum("tc,tc->c", x, y) for x, y in ((a, b), (a, a), (b, b))]
        products: DoubleArray = np.add.reduceat(np.stack(sums), starts, axis=1)
    return products


def flat_cosine(products: DoubleArray) -> float:
    """The cosine of everything as one vector, from `group_products`; NaN if it is undefined."""
    ab, aa, bb = products.sum(axis=1).tolist()
    return float(_angle(np.array(ab), np.array(aa), np.array(bb)))


def group_cosines(products: DoubleArray) -> DoubleArray:
    """The cosine of each group of channels, from `group_products`; `[groups]`.

    An error that keeps to a few channels, as one palette's group of output channels may, hardly
    moves the cosine of a whole row. A group that is zero on both sides agrees, with 1; on one side
    only its cosine is NaN, as with any value that is not finite.
    """
    ab, aa, bb = products
    return np.where((aa == 0) & (bb == 0), 1.0, _angle(ab, aa, bb))


def is_cosine(value: float) -> bool:
    """Whether a number may be a cosine: in -1..1 but for rounding, or NaN for an undefined one."""
    return math.isnan(value) or abs(value) <= 1 + _ROUNDING


def check_shapes(a: Array, b: Array) -> None:
    """Raise `ValueError` where the shapes differ: numpy would compare one row with many."""
    if a.shape != b.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}")


def _angle(ab: DoubleArray, aa: DoubleArray, bb: DoubleArray) -> DoubleArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        angle: DoubleArray = np.clip(ab / (np.sqrt(aa) * np.sqrt(bb)), -1.0, 1.0)
    return angle


def _dots(a: DoubleArray, b: DoubleArray) -> DoubleArray:
    dots: DoubleArray = np.einsum("tc,tc->t", a, b)
    return dots


def _scaled(x: Array) -> DoubleArray:
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled: DoubleArray = x / np.abs(x).max(axis=1, keepdims=True, initial=0.0)
    return scaled
