"""What sums lose in the accumulator: products that are dropped whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from pytest_ane.mlprogram.arrays import Array, DoubleArray
from pytest_ane.mlprogram.executor.ane.accumulator import Weight
from pytest_ane.mlprogram.executor.ane.fp16 import bits_of, decoded_number
from pytest_ane.mlprogram.executor.ane.kernel import FACTORS, number_of
from pytest_ane.mlprogram.executor.kernels import compiled

_LEAST, _MOST = -14, -3
"""Exponents of the vectors' numbers, between which products may be dropped."""
_CLASSES = _MOST - _LEAST + 2
"""Of factors by exponent: from -14 to -3, and larger ones, which are never dropped."""


@dataclass(frozen=True)
class Losses:
    """Of all products of a weight and some vectors.

    Attributes:
        products: those that are not 0.
        dropped: those of them that are dropped whole, as e_x + e_w <= -17.
        size: sum of |w x|.
        lost: sum of |w x| of the dropped ones.
    """

    products: int = 0
    dropped: int = 0
    size: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True, eq=False)
class Columns:
    """Factors of each column by exponent, so that losses need no product.

    Attributes:
        counts: how many factors `[B, K, 13]` are not 0 and have at most the exponent -14, -13, ...,
            -3; the last one counts all.
        sizes: sum of |w| of the same.
    """

    counts: DoubleArray
    sizes: DoubleArray

    @classmethod
    def of(cls, weight: Weight) -> Columns:
        """Of prepared factors `[B, O, K]`."""
        batch, _, width = weight.factors.shape
        counts, sizes = np.zeros((2, batch, width, _CLASSES))
        count = _count_half if weight.factors.dtype == np.uint16 else _count_wide
        count(weight.factors, counts, sizes)
        return cls(np.cumsum(counts, -1), np.cumsum(sizes, -1))

    def losses(self, vectors: Array) -> Losses:
        """With `vectors [B, P, K]`: fp16 numbers in any floating type."""
        out = np.zeros(4)
        _lose(np.ascontiguousarray(vectors, np.float32), self.counts, self.sizes, out)
        return Losses(int(out[0]), int(out[1]), float(out[2]), float(out[3]))


def losses(weight: Weight, vectors: Array) -> Losses:
    """Of the sums that `accumulator.sums` computes; shapes as there."""
    return Columns.of(weight).losses(vectors)


def _count(factors: Any, counts: Any, sizes: Any) -> None:
    """Add factors to their classes."""
    for b in range(factors.shape[0]):
        for o in range(factors.shape[1]):
            for k in range(factors.shape[2]):
                size = abs(np.float64(number_of(factors[b, o, k])))
                if size > 0:
                    e = (bits_of(size) >> 52) - 1023
                    at = min(max(e, _LEAST), _MOST + 1) - _LEAST
                    counts[b, k, at] += 1
                    sizes[b, k, at] += size


_TABLE = types.float64[:, :, ::1]
_VECTORS = types.Array(types.float32, 3, "C", readonly=True)
_count_half, _count_wide = (compiled(kind, _TABLE, _TABLE)(_count) for kind in FACTORS)


@compiled(_VECTORS, _TABLE, _TABLE, types.float64[::1])
def _lose(vectors: Any, counts: Any, sizes: Any, out: Any) -> None:
    """Products, dropped ones, and both sums of |w x|.

    A factor is dropped where its exponent is at most -17 - e_x, which exists for e_x <= -3.
    """
    for b in range(vectors.shape[0]):
        for p in range(vectors.shape[1]):
            for k in range(vectors.shape[2]):
                size = abs(np.float64(decoded_number(vectors[b, p, k])))
                if size == 0:
                    continue
                out[0] += counts[b, k, _CLASSES - 1]
                out[2] += size * sizes[b, k, _CLASSES - 1]
                e = max((bits_of(size) >> 52) - 1023, _LEAST)
                if e <= _MOST:
                    out[1] += counts[b, k, _MOST - e]
                    out[3] += size * sizes[b, k, _MOST - e]
