"""The compiled sums of `accumulator`: its rules in the fewest instructions that give every bit.

Where no order of summation overflows, rounded products are added as 32-bit integers, four rows with
two vectors at a time; elsewhere one after the other in float64, with the sticky limit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from pytest_ane.mlprogram.executor._kernels import compiled
from pytest_ane.mlprogram.executor._kernels import widen_number as number_of
from pytest_ane.mlprogram.executor.ane._fp16 import bits_of, decoded_number, inline, of_bits

LIMIT = 2**31
"""Of the accumulator, in LSB: 32768.0."""
_MORE = 1.000001
"""More than float64 loses in any sum here."""


def _half_of(context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sign = builder.and_(builder.bitcast(arguments[0], _I32), ir.Constant(_I32, 1 << 31))
        return builder.bitcast(builder.or_(sign, ir.Constant(_I32, 0x3F000000)), _F32)

    return types.float32(types.float32), generate


def _cut(builder: Any, factor: Any, x: Any, half: Any) -> Any:
    """`round(factor x)`, ties away from zero, where it is below 2^31.

    A product has 22 significant bits, so float32 holds it, and its sum with 0.5 of its own sign:
    cutting off the fraction of that is the rounding, whether or not the two are fused.
    """
    sign = builder.and_(builder.bitcast(factor, _I32), ir.Constant(_I32, 1 << 31))
    own = builder.bitcast(builder.xor(sign, builder.bitcast(half, _I32)), _F32)
    product = builder.fmul(factor, x, flags=("contract",))
    return builder.fptosi(builder.fadd(product, own, flags=("contract",)), _I32)


def _fused(builder: Any, factor: Any, x: Any, larger: Any) -> Any:
    """The same where the product is below 2^21, in half the instructions.

    Adding 1.5 * 2^23 leaves no bits for a fraction, and rounds ties to even. `larger` is x times
    1 + 2^-23, which moves ties off the middle, away from zero, and no other product as far as one.
    """
    total = builder.fma(factor, larger, ir.Constant(_F32, _SHIFT))
    return builder.sub(builder.bitcast(total, _I32), ir.Constant(_I32, _SHIFT_BITS))


def _adding(rounded: Any) -> Any:
    """`total` plus the product `rounded`, where |factor| is at least `least`."""

    def add(context: Any, total: Any, factor: Any, x: Any, aid: Any, least: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            total, factor, x, aid, least = arguments
            whole = rounded(builder, factor, x, aid)
            size = builder.and_(builder.bitcast(factor, _I32), ir.Constant(_I32, (1 << 31) - 1))
            kept = builder.fcmp_ordered(">=", builder.bitcast(size, _F32), least)
            return builder.add(total, builder.select(kept, whole, ir.Constant(_I32, 0)))

        kind = types.float32
        return types.int32(types.int32, kind, kind, kind, kind), generate

    return intrinsic(add)


_I32, _F32 = ir.IntType(32), ir.FloatType()
_SHIFT, _SHIFT_BITS = 1.5 * 2**23, 0x4B400000
_FUSED = 2.0**21
"""Products below it, in LSB, are rounded by `_fused`."""

_half: Any = intrinsic(_half_of)
_add_cut: Any = _adding(_cut)
_add_fused: Any = _adding(_fused)

_quick = numba.njit(nogil=True, fastmath={"reassoc", "contract"})


@inline
def _larger(x: Any) -> Any:
    """`x` times 1 + 2^-23, by one or two steps of float32."""
    return x * np.float32(1 + 2.0**-23)


def _summing(aid: Any, add: Any) -> tuple[Any, Any]:
    """Sums in LSB of a row with a vector, and of four rows with two; right where none overflows.

    Of the eight sums, every number that is read serves several. `aid(x)` is what `add` needs beside
    x.
    """

    @inline
    def one(row: Any, x: Any, least: Any) -> Any:
        total = np.int32(0)
        for k in range(len(row)):
            total = add(total, number_of(row[k]), x[k], aid(x[k]), least[k])
        return total

    @inline
    def eight(factors: Any, o: Any, x: Any, least: Any, b: Any, p: Any) -> Any:
        z = np.int32(0)
        s0, s1, s2, s3, s4, s5, s6, s7 = z, z, z, z, z, z, z, z
        for k in range(factors.shape[2]):
            w0, w1 = number_of(factors[b, o, k]), number_of(factors[b, o + 1, k])
            w2, w3 = number_of(factors[b, o + 2, k]), number_of(factors[b, o + 3, k])
            u, u_aid, u_least = x[b, p, k], aid(x[b, p, k]), least[b, p, k]
            v, v_aid, v_least = x[b, p + 1, k], aid(x[b, p + 1, k]), least[b, p + 1, k]
            s0, s1 = add(s0, w0, u, u_aid, u_least), add(s1, w0, v, v_aid, v_least)
            s2, s3 = add(s2, w1, u, u_aid, u_least), add(s3, w1, v, v_aid, v_least)
            s4, s5 = add(s4, w2, u, u_aid, u_least), add(s5, w2, v, v_aid, v_least)
            s6, s7 = add(s6, w3, u, u_aid, u_least), add(s7, w3, v, v_aid, v_least)
        return s0, s1, s2, s3, s4, s5, s6, s7

    return one, eight


_one_cut, _eight_cut = _summing(_half, _add_cut)
_one_fused, _eight_fused = _summing(_larger, _add_fused)


@_quick
def _size(row: Any, x: Any) -> Any:
    """Upper bound of the sum of |products|, in LSB: what float32 loses in any order is added."""
    total = np.float32(0)
    for k in range(len(row)):
        total += abs(number_of(row[k]) * x[k])
    return np.float64(total) * (1 + len(row) * 2.0**-23) + len(row)


@inline
def _serial(row: Any, x: Any, least: Any, start: Any) -> Any:
    """The sum in order of k with the sticky limit, and whether another order gives another one.

    Products beyond 2^40, which exceed the limit by far, count as that, so that sums stay exact.
    """
    serial, low, high = start, start, start
    overflowed = 0 if abs(start) < LIMIT else int(np.sign(start))
    always = overflowed
    for k in range(len(row)):
        factor = np.float64(number_of(row[k]))
        if abs(factor) < least[k]:
            continue
        product = factor * np.float64(x[k])
        rounded = np.copysign(min(np.floor(abs(product) + 0.5), 2.0**40), product)
        low += min(rounded, 0.0)
        high += max(rounded, 0.0)
        serial += rounded
        if overflowed == 0 and abs(serial) >= LIMIT:
            overflowed = int(np.sign(serial))
    total = low + high - start
    if always == 0 and low > -LIMIT and total >= LIMIT:
        always = 1
    if always == 0 and high < LIMIT and total <= -LIMIT:
        always = -1
    never = low > -LIMIT and high < LIMIT
    result = total if overflowed == 0 else overflowed * np.inf
    return result, always == 0 and not never


@inline
def _output(row: Any, x: Any, least: Any, start: Any) -> Any:
    """One output in LSB; by the quick sum where sum |w x| rules out overflow."""
    if abs(start) + _size(row, x) < LIMIT:
        return start + _one_cut(row, x, least), False
    return _serial(row, x, least, start)


@_quick
def _lengths(row: Any) -> Any:
    total, square = 0.0, 0.0
    for k in range(len(row)):
        w = np.float64(number_of(row[k]))
        total += abs(w)
        square += w * w
    return total, square


FACTORS = [types.Array(kind, 3, "C", readonly=True) for kind in (types.uint16, types.float32)]
_VECTORS, _ROWS = types.float32[:, :, ::1], types.float64[:, ::1]
_FLAGS = types.boolean[:, :, ::1]


@compiled(*[[factors, _ROWS, _ROWS] for factors in FACTORS])
def measure(factors: Any, totals: Any, norms: Any) -> None:
    """Sum of |w| and Euclidean norm of each row, enlarged by more than float64 loses."""
    for b in range(factors.shape[0]):
        for o in range(factors.shape[1]):
            total, square = _lengths(factors[b, o])
            totals[b, o], norms[b, o] = total * _MORE, np.sqrt(square) * _MORE


@compiled([types.Array(types.float32, 3, "C", readonly=True), _VECTORS, _VECTORS])
def scale(vectors: Any, x: Any, least: Any) -> None:
    """Vectors in LSB, and for each number the least |factor| whose product is not dropped.

    e_x + e_w <= -17 is |w| < 2^(-16 - e_x); no product is dropped where e_x >= -2, as e_w >= -14.
    """
    for b in range(vectors.shape[0]):
        for p in range(vectors.shape[1]):
            for k in range(vectors.shape[2]):
                number = np.float64(decoded_number(vectors[b, p, k]))
                x[b, p, k] = number * 65536
                e = max((bits_of(abs(number)) >> 52) - 1023, -14)
                least[b, p, k] = 0 if e >= -2 else of_bits((1023 - 16 - e) << 52)


@_quick
def _extent(vector: Any) -> Any:
    """Largest magnitude and Euclidean norm, enlarged by more than float64 loses."""
    largest, square = np.float32(0), 0.0
    for k in range(len(vector)):
        largest = max(largest, abs(vector[k]))
        square += np.float64(vector[k]) * np.float64(vector[k])
    return np.float64(largest), np.sqrt(square) * _MORE


@inline
def _is_safe(total: Any, norm: Any, start: Any, largest: Any, length: Any, width: Any) -> Any:
    """Whether every partial sum is within the limit, by bounds of sum |w x|.

    It is at most sum |w| max |x|, and at most the product of both Euclidean norms; rounding adds at
    most half an LSB a product.
    """
    return min(total * largest, norm * length) + start + width < LIMIT


@inline
def _most(numbers: Any) -> Any:
    most = 0.0
    for n in numbers:
        most = max(most, abs(n))
    return most


@inline
def _outer(column: Any, x: Any, least: Any, start: Any, out: Any) -> None:
    """Products of one factor each, as a cache is written by: nothing is summed."""
    for o in range(len(column)):
        factor = number_of(column[o])
        for p in range(len(x)):
            product = _add_cut(np.int32(0), factor, x[p], _half(x[p]), least[p])
            out[o, p] = start[o] + product


@compiled(
    *[[factors, _ROWS, _ROWS, *[_VECTORS] * 2, _ROWS, types.float64[:, :, ::1], _FLAGS,
       types.int64[::1]] for factors in FACTORS]
)  # fmt: skip
def products(
    factors: Any, totals: Any, norms: Any, x: Any, least: Any, start: Any, out: Any, mask: Any,
    counts: Any,
) -> None:  # fmt: skip
    """Every output in LSB, where it may overflow, and how many may and how many do."""
    rows, count, width = factors.shape[1], x.shape[1], factors.shape[2]
    for b in range(factors.shape[0]):
        total, norm, begin = _most(totals[b]), _most(norms[b]), _most(start[b])
        largest, length = np.empty(count), np.empty(count)
        for p in range(count):
            largest[p], length[p] = _extent(x[b, p])
        all_safe = _is_safe(total, norm, begin, _most(largest), _most(length), width)
        if all_safe and width == 1:
            _outer(factors[b].reshape(-1), x[b].reshape(-1), least[b].reshape(-1), start[b], out[b])
            continue
        for o in range(0, rows, 4):
            for p in range(0, count, 2):
                last_row, last = min(o + 4, rows), min(p + 2, count)
                fused = norm * max(largest[p], largest[last - 1]) < _FUSED
                safe = all_safe or _is_safe(
                    _most(totals[b, o:last_row]), _most(norms[b, o:last_row]),
                    _most(start[b, o:last_row]), _most(largest[p:last]), _most(length[p:last]),
                    width,
                )  # fmt: skip
                if safe and o + 4 == last_row and p + 2 == last:
                    tile = (factors, o, x, least, b, p)
                    eight = _eight_fused(*tile) if fused else _eight_cut(*tile)
                    for i in range(8):
                        out[b, o + i // 2, p + i % 2] = start[b, o + i // 2] + eight[i]
                    continue
                for r in range(o, last_row):
                    for q in range(p, last):
                        row, vector, kept = factors[b, r], x[b, q], least[b, q]
                        if safe and fused:
                            y = _one_fused(row, vector, kept) + start[b, r]
                        elif safe:
                            y = _one_cut(row, vector, kept) + start[b, r]
                        else:
                            y, depends = _output(row, vector, kept, start[b, r])
                            mask[b, r, q] = depends
                            counts[0] += depends
                            counts[1] += np.isinf(y)
                        out[b, r, q] = y
