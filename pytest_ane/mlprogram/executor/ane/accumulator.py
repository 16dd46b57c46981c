"""Sums of products in the ANE's Q15.16 accumulator: convolutions 1x1, linear layers, matmul.

Source: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6, final_report/en.md chapter 8 and
data/06_numerics; M6 (h18g), the basic set again on M4 (h16g). Grade: recorded (546 outputs).

With an fp16 number as +-m * 2^(e - 10), m of 11 bits and e of a subnormal -14, and LSB = 2^-16:

1. A product is exact: m_x m_w, exponent e = e_x + e_w.
2. e <= -17: dropped whole; else rounded to whole LSB, ties away from zero.
3. The accumulator starts with the bias, rounded in the same way, and adds 32-bit integers.
4. |accumulator| >= 2^31 (32768.0) at any time gives an infinity of its sign, and it stays.
5. The result is `r16(accumulator * LSB)`; an accumulator of 0 gives +0.

The order of summation is unknown, and matters only where some orders overflow and others do not.
Every partial sum lies between bias + all negative products and bias + all positive ones, so both
within the limit means that no order overflows; a sum beyond the limit on one side, with the other
within, that all do. Elsewhere the sum is taken in order of k, and named `may_overflow`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba.core import types

from pytest_ane.mlprogram.arrays import Array, BoolArray, DoubleArray, FloatArray
from pytest_ane.mlprogram.executor._kernels import Patterns, compiled
from pytest_ane.mlprogram.executor._kernels import widen_number as number_of
from pytest_ane.mlprogram.executor.ane._fp16 import bits_of, decode, decoded_number, r16
from pytest_ane.mlprogram.executor.ane._kernel import FACTORS, measure, products, scale

LSB = 2.0**-16


@dataclass(frozen=True, eq=False)
class Weight:
    """Factors `[B, O, K]` prepared for `sums`: uint16 patterns of fp16, or float32 once decoded.

    Of each row `[B, O]` the sum of |w| and the Euclidean norm; not finite where a number is not.
    """

    factors: Patterns | FloatArray
    totals: DoubleArray
    norms: DoubleArray

    @classmethod
    def of(cls, factors: Array) -> Weight:
        """Prepare patterns (uint16), fp16 or float32 numbers `[B, O, K]`."""
        if factors.dtype != np.uint16:
            is_half = factors.dtype == np.float16
            factors = factors.view(np.uint16) if is_half else factors.astype(np.float32, copy=False)
        factors = np.require(factors, requirements=("C", "A"))
        totals, norms = np.empty((2, *factors.shape[:2]))
        measure(factors, totals, norms)
        if not np.isfinite(totals).all():
            wide = factors.view(np.float16) if factors.dtype == np.uint16 else factors
            return cls.of(decode(wide))
        return cls(factors, totals, norms)


@dataclass(frozen=True, eq=False)
class Sums:
    """What an accumulator gives.

    Attributes:
        values: fp16 numbers `[B, O, P]` as float32.
        may_overflow: where some orders of summation overflow and others do not; None for nowhere.
        products: how many were summed.
        infinite: values that overflowed.
        operands: factors and vectors; of factors that are decoded in parts, those of the last one.
    """

    values: FloatArray
    may_overflow: BoolArray | None
    products: int
    infinite: int = 0
    operands: tuple[Weight, Array] | None = None

    def map(self, arrange: Callable[[Array], Array]) -> Sums:
        """The same with its arrays in another shape."""
        mask = None if self.may_overflow is None else arrange(self.may_overflow)
        return replace(self, values=arrange(self.values), may_overflow=mask)

    @classmethod
    def joined(cls, parts: Sequence[Sums]) -> Sums:
        """Those of some rows after the other, `[B, O, P]`."""
        depends = any(part.may_overflow is not None for part in parts)
        return cls(
            np.concatenate([part.values for part in parts], 1),
            np.concatenate([part.mask for part in parts], 1) if depends else None,
            sum(part.products for part in parts),
            sum(part.infinite for part in parts),
            parts[-1].operands,
        )

    @property
    def mask(self) -> BoolArray:
        """Where some orders of summation overflow and others do not."""
        nowhere = np.zeros(self.values.shape, np.bool_)
        return nowhere if self.may_overflow is None else self.may_overflow


def sums(weight: Weight, vectors: Array, bias: Array | None = None) -> Sums:
    """`weight [B, O, K]` times `vectors [B, P, K]`, over K, plus `bias [B, O]`.

    fp16 numbers in any floating type; infinities and NaN of vectors are decoded.
    """
    numbers = np.ascontiguousarray(vectors, np.float32)
    rows, (groups, count, width) = weight.factors.shape[:2], numbers.shape
    if weight.factors.shape != (groups, rows[1], width):
        raise ValueError(f"factors {weight.factors.shape} and vectors {numbers.shape} do not fit")
    start = np.zeros(rows) if bias is None else starts(bias).reshape(rows)
    # Vectors in LSB, and the least |factor| that counts for each of their numbers.
    x, least = np.empty_like(numbers), np.empty_like(numbers)
    scale(numbers, x, least)
    totals = np.empty((*rows, count))
    mask = np.zeros(totals.shape, np.bool_)
    counts = np.zeros(2, np.int64)
    products(weight.factors, weight.totals, weight.norms, x, least, start, totals, mask, counts)
    values = r16(np.multiply(totals, LSB, out=totals))
    depends, infinite = counts.tolist()
    may_overflow = mask if depends else None
    return Sums(values, may_overflow, totals.size * width, infinite, (weight, vectors))


def starts(bias: Array) -> DoubleArray:
    """What an accumulator starts with: a bias in whole LSB, ties away from zero, as float64."""
    steps = np.abs(decode(bias).astype(np.float64)) / LSB
    return np.asarray(np.copysign(np.floor(steps + 0.5), decode(bias)) + 0.0)


_LEAST, _MOST = -14, -3
"""Exponents of the vectors' numbers, between which products may be dropped."""
_CLASSES = _MOST - _LEAST + 2
"""Of factors by exponent: from -14 to -3, and larger ones, which are never dropped."""


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
        _count(weight.factors, counts, sizes)
        return cls(np.cumsum(counts, -1), np.cumsum(sizes, -1))

    def losses(self, vectors: Array) -> DoubleArray:
        """With `vectors [B, P, K]`, fp16 numbers in any floating type.

        How many products are not 0, how many of them are dropped whole (e_x + e_w <= -17), and the
        sums of |w x| of all and of the dropped ones.
        """
        out = np.zeros(4)
        _lose(np.ascontiguousarray(vectors, np.float32), self.counts, self.sizes, out)
        return out


_TABLE = types.float64[:, :, ::1]
_VECTORS = types.Array(types.float32, 3, "C", readonly=True)


@compiled(*[[factors, _TABLE, _TABLE] for factors in FACTORS])
def _count(factors: Any, counts: Any, sizes: Any) -> None:
    for b in range(factors.shape[0]):
        for o in range(factors.shape[1]):
            for k in range(factors.shape[2]):
                size = abs(np.float64(number_of(factors[b, o, k])))
                if size > 0:
                    e = (bits_of(size) >> 52) - 1023
                    at = min(max(e, _LEAST), _MOST + 1) - _LEAST
                    counts[b, k, at] += 1
                    sizes[b, k, at] += size


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
