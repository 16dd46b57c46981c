"""What sums lose in the accumulator, and how near they come to its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types

from pytest_ane.core.arrays import Array
from pytest_ane.reference.ane.accumulator import LSB, Weight, prepare
from pytest_ane.reference.ane.kernel import FACTORS, number_of
from pytest_ane.reference.kernels import compiled


@dataclass(frozen=True)
class Losses:
    """Of all sums of products of a weight and some vectors.

    Attributes:
        products: those that are not 0.
        dropped: those of them that are dropped whole, as e_x + e_w <= -17.
        size: sum of |w x|.
        lost: sum of |w x| of the dropped ones.
        largest: largest |sum|, bias included, of 32768.
        reach: largest |partial sum| that some order of summation meets.
    """

    products: int
    dropped: int
    size: float
    lost: float
    largest: float
    reach: float


def losses(weight: Weight, vectors: Array, bias: Array | None = None) -> Losses:
    """Measure the sums that `accumulator.sums` computes; shapes as there. Takes far longer."""
    x, least, start = prepare(weight, vectors, bias)
    out = np.zeros(6)
    measure = _measure_half if weight.factors.dtype == np.uint16 else _measure_wide
    measure(weight.factors, x, least, start, out)
    products, dropped = (int(n) for n in out[:2])
    size, lost, largest, reach = (float(n) * LSB for n in out[2:])
    return Losses(products, dropped, size, lost, largest, reach)


def _measure(factors: Any, x: Any, least: Any, start: Any, out: Any) -> None:
    """Add up over all outputs: products, dropped ones, their sizes; and the largest sums."""
    for b in range(factors.shape[0]):
        for o in range(factors.shape[1]):
            for p in range(x.shape[1]):
                low, high = start[b, o], start[b, o]
                for k in range(factors.shape[2]):
                    w = np.float64(number_of(factors[b, o, k]))
                    product = w * x[b, p, k]
                    size = abs(product)
                    out[0] += size > 0
                    out[2] += size
                    if abs(w) < least[b, p, k]:
                        out[1] += size > 0
                        out[3] += size
                        continue
                    rounded = np.copysign(np.floor(size + 0.5), product)
                    low += min(rounded, 0.0)
                    high += max(rounded, 0.0)
                out[4] = max(out[4], abs(low + high - start[b, o]))
                out[5] = max(out[5], high, -low)


_VECTORS, _ROWS = types.float32[:, :, ::1], types.float64[:, ::1]
_measure_half, _measure_wide = (
    compiled(kind, _VECTORS, _VECTORS, _ROWS, types.float64[::1])(_measure) for kind in FACTORS
)
