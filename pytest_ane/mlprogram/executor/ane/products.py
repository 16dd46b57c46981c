"""Convolutions 1x1, linear layers and products of matrices, in the accumulator of Q15.16.

Grade: recorded, M4, M5 and M6; see `accumulator`. Larger kernels are of unknown arithmetic: the
hardware transforms some (Winograd), and how it passes over large ones is not known. Weights of
palettes count as fp16 weights, which is inferred from M1 (sbryngelson/ane-guide part-1/03).
Constant operands are prepared once: as fp16 numbers, or as codes with a scale after accumulation,
which activations and weights of 8 bits (W8A8) have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.executor.ane import Grade, rule
from pytest_ane.mlprogram.executor.ane._fp16 import decode, r16
from pytest_ane.mlprogram.executor.ane._kernel import LIMIT
from pytest_ane.mlprogram.executor.ane.accumulator import Sums, Weight, sums
from pytest_ane.mlprogram.executor.dtypes import round_fp16
from pytest_ane.mlprogram.executor.ops.constexpr import along
from pytest_ane.mlprogram.executor.ops.spatial import ints, padding
from pytest_ane.mlprogram.executor.weights import HalfWeight, StreamedWeight

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


@rule(Grade.RECORDED, "quantize")
def quantize(
    input: Any, scale: Any, output_dtype: str, zero_point: Any = 0, axis: int | None = None
) -> Array:
    """`clamp(round(x / scale) + zero_point)`, ties away from zero.

    Grade: recorded at unit scale (M5, cadamcat/llms-on-apple-neural-engine: all 63,488 finite fp16
    numbers); with another scale the place of the rounding inside the division is unknown.
    """
    x = decode(input).astype(np.float64)
    scale = along(scale, x.shape, axis, "scale").astype(np.float64)
    zero_point = along(zero_point, x.shape, axis, "zero_point")
    steps = x / scale
    nearest = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
    codes = np.clip(nearest + zero_point, *RANGES[output_dtype])
    return np.asarray(codes.astype(output_dtype))


@rule(Grade.INFERRED, "dequantize")
def dequantize(input: Any, scale: Any, zero_point: Any = 0, axis: int | None = None) -> FloatArray:
    """`r16(scale (input - zero_point))`: exact, then rounded once, as `mul` is."""
    scale = along(scale, input.shape, axis, "scale").astype(np.float64)
    return r16(scale * (input.astype(np.float64) - along(zero_point, input.shape, axis, "zero")))


def w8a8(
    codes: Array, weight: Array, scale: float, weight_scale: Any, bias: Array | None = None
) -> Sums:
    """Sum of products of 8-bit codes, `[.., P, K]` and `[.., O, K]`, scaled: `[.., O, P]`.

    Codes of the activations are less their zero point; weights have one scale, or `[.., O]`.

    The accumulator has 32 bits, |S| >= 2^31 gives an infinity; the result is `r16(S s_x s_w)`, and
    may exceed 32768. Grade: recorded with powers of two as scales (30 outputs on M6, 751K
    data/06_numerics/numerics_i8); elsewhere the place of a rounding inside the scaling is unknown,
    and so is that of a bias, which is added before it here.
    """
    # Exact: products are below 2^16, and sums of them below 2^53.
    total = weight.astype(np.float64) @ np.swapaxes(codes.astype(np.float64), -1, -2)
    scaled = total * (np.float64(scale) * np.asarray(weight_scale, np.float64)[..., None])
    if bias is not None:
        scaled = scaled + decode(bias)[..., None]
    overflowed = np.abs(total) >= LIMIT
    values = r16(np.where(overflowed, np.copysign(np.inf, total), scaled))
    return Sums(values, None, values.size * codes.shape[-1], int(np.isinf(values).sum()))


def scaled_after(codes: Weight, vectors: Array, scale: Array, bias: Array | None = None) -> Sums:
    """Weight codes `[B, O, K]` times fp16 `vectors [B, P, K]`; the `scale [B, O]` comes afterwards.

    `r16(r16(sum of codes * x) * scale + bias)`, the sum in the Q15.16 accumulator, so that one
    beyond 32768 is infinite however small it is once scaled. Grade: recorded on one coordinate (M5,
    Core AI), inferred from statistics for the rest (7,163,904 gate values, cadamcat
    cross-model-validation.json); for int8 weights of Core ML, and for a bias, unknown. Off by
    default.
    """
    total = sums(codes, vectors)
    scaled = total.values.astype(np.float64) * decode(scale).astype(np.float64)[..., None]
    if bias is not None:
        scaled = scaled + decode(bias)[..., None]
    return replace(total, values=r16(scaled))


@dataclass(frozen=True, eq=False)
class Factors:
    """A weight `[O, K, 1...]`, or an operand of matmul `[*B, O, K]`.

    Attributes:
        source: an array, or a weight that is held in fp16 or streamed.
        width: K.
        groups: of rows, each with vectors of its own.
        transposed: the last two axes are the other way round.
        scale: of the codes that the program says it is made of, which broadcasts to it.
    """

    source: Any
    width: int
    groups: int = 1
    transposed: bool = False
    scale: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the source."""
        return tuple(self.source.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def grade(self, usual: Grade, has_bias: bool) -> Grade:
        """How well these sums are known, if those of fp16 numbers are known as `usual` says."""
        return usual

    @property
    def height(self) -> int:
        """O of an operand of matmul."""
        return self.shape[-1 if self.transposed else -2]

    @property
    def matrix(self) -> Array:
        """An operand of matmul as `[*B, O, K]`."""
        return self._turned(np.asarray(self.source))

    def _turned(self, array: Array) -> Array:
        return np.swapaxes(array, -1, -2) if self.transposed else array

    def rows(self, array: Array) -> Array:
        """An array of the source's shape as `[groups, O, K]`."""
        count = array.size // max(self.groups * self.width, 1)
        return self._turned(array).reshape(self.groups, count, self.width)

    def sums(self, vectors: Array, bias: Array | None = None) -> Sums | None:
        """With `vectors [groups, P, K]` and `bias [groups, O]`; None for what has no rule."""
        source = self.source
        if not isinstance(source, StreamedWeight) or isinstance(source, HalfWeight):
            return sums(self._weight, vectors, bias)
        if self.groups > 1:
            return sums(Weight.of(self.rows(np.asarray(source))), vectors, bias)
        return Sums.joined(
            [
                sums(Weight.of(self.rows(rows)), vectors, None if bias is None else bias[:, place])
                for place, rows in source.blocks()
            ]
        )

    @cached_property
    def _weight(self) -> Weight:
        is_half = isinstance(self.source, HalfWeight)
        return Weight.of(self.rows(self.source.patterns if is_half else np.asarray(self.source)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Codes(Factors):
    """The same of integers times a scale that broadcasts to the source and is one for each row."""

    scale: Array

    @property
    def is_exact(self) -> bool:
        """Whether the source is codes times scale, as it is unless another weight replaced it."""
        scale = self.rows(np.broadcast_to(self.scale, self.shape))
        with np.errstate(all="ignore"):
            product = round_fp16(np.rint(self.source / self.scale) * self.scale)
        per_row = bool(np.all(scale == scale[..., :1]))
        return per_row and np.array_equal(product, self.source)

    @cached_property
    def codes(self) -> tuple[Array, Array]:
        """Integers `[groups, O, K]` as float32, and their scales `[groups, O]`."""
        scale = self.rows(np.broadcast_to(self.scale, self.shape))[..., 0]
        return self.rows(np.rint(self.source / self.scale).astype(np.float32)), scale


@dataclass(frozen=True, eq=False, kw_only=True)
class LateScale(Codes):
    """Codes that are summed before they are scaled; see `scaled_after`."""

    def grade(self, usual: Grade, has_bias: bool) -> Grade:
        """Inferred."""
        return Grade.INFERRED

    def sums(self, vectors: Array, bias: Array | None = None) -> Sums:
        """As `Factors.sums`; the bias is added after the scale."""
        return scaled_after(self._late, vectors, self.codes[1], bias)

    @cached_property
    def _late(self) -> Weight:
        return Weight.of(self.codes[0].astype(np.float16))


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegerCodes(Codes):
    """Codes that are multiplied with codes: W8A8; see `w8a8`.

    Step and zero point are of the vectors, which are codes less it; only 0 was recorded.
    """

    step: float
    zero_point: int

    def grade(self, usual: Grade, has_bias: bool) -> Grade:
        """Recorded for scales that are powers of two, without bias and zero point."""
        scales = np.append(self.codes[1], self.step)
        known = np.all(np.frexp(scales)[0] == 0.5) and not has_bias and not self.zero_point
        return Grade.RECORDED if known else Grade.INFERRED

    def sums(self, vectors: Array, bias: Array | None = None) -> Sums | None:
        """As `Factors.sums`; None where dequantized vectors overflowed fp16."""
        if not np.isfinite(vectors).all():
            return None
        codes, scale = self.codes
        return w8a8(np.rint(vectors / np.float32(self.step)), codes, self.step, scale, bias)


@rule(Grade.RECORDED, "conv")
def conv(
    x: Any, weight: Any, bias: Any = None, strides: Any = None, pad_type: str = "valid",
    pad: Any = None, dilations: Any = None, groups: int = 1,
) -> Sums | None:  # fmt: skip
    """`x [N, C, *D]` with `weight [O, C / groups, 1...]`; None for a larger kernel."""
    kernel, spatial, groups = weight.shape[2:], x.ndim - 2, int(groups)
    if not set(kernel) <= {1}:
        return None
    steps = ints(strides, spatial, 1)
    pads = padding(pad_type, pad, x.shape[2:], kernel, steps, ints(dilations, spatial, 1))
    if any(map(any, pads)):
        x = np.pad(x, [(0, 0), (0, 0), *pads])
    strided: Any = (..., *(slice(None, None, step) for step in steps))
    x = x[strided]
    count, size, width = len(x), x.shape[2:], weight.shape[1]
    positions, rows = math.prod(size), weight.shape[0] // groups
    vectors = x.reshape(count, groups, width, positions).transpose(1, 0, 3, 2)
    vectors = vectors.reshape(groups, count * positions, width)

    def shaped(y: Array) -> Array:
        y = y.reshape(groups, rows, count, positions).transpose(2, 0, 1, 3)
        return y.reshape(count, weight.shape[0], *size)

    total = _sums(weight, width, groups, vectors, bias)
    return total and total.map(shaped)


@rule(Grade.RECORDED, "linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Sums | None:
    """`x [.., K]` with `weight [O, K]` and `bias [O]`."""
    if weight.ndim != 2 or (bias is not None and np.shape(bias) != weight.shape[:1]):
        raise ValueError(f"a weight {weight.shape} and a bias {np.shape(bias)}")
    vectors = x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])
    total = _sums(weight, weight.shape[1], 1, vectors, bias)
    return total and total.map(lambda y: y[0].T.reshape(*x.shape[:-1], weight.shape[0]))


@rule(Grade.RECORDED, "matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Sums | None:
    """`x y` over the last two axes, the others broadcast; either may be transposed first.

    A vector is a row on the left and a column on the right; its axis is then removed again.
    Two transposed activations that gave infinities on M5 (ANEForge issue 115) contradict the rule.
    """
    left, right = matrix(x, transposed=transpose_x), matrix(y, transposed=not transpose_y)
    if left.width != right.width:
        raise ValueError(f"{x.shape} and {y.shape} do not fit")
    # Either side may be the weight: a constant one is prepared, and many rows are summed faster.
    is_left = x is left or (y is not right and left.height > right.height)
    factors, others = (left, right) if is_left else (right, left)

    def shaped(z: Array) -> Array:
        z = z if is_left else np.swapaxes(z, -1, -2)
        z = z if x.ndim > 1 else z[..., 0, :]
        return z if y.ndim > 1 else z[..., 0]

    total = _multiplied(factors, others.matrix)
    return total and total.map(shaped)


def matrix(x: Any, *, transposed: bool) -> Factors:
    """An operand of matmul by its rows `[.., O, K]`, which are its columns if `transposed`."""
    if isinstance(x, Factors):
        return x
    x = np.asarray(x)
    if x.ndim == 1:
        return Factors(x[None], len(x))
    return Factors(x, x.shape[-2 if transposed else -1], math.prod(x.shape[:-2]), bool(transposed))


def _multiplied(factors: Factors, vectors: Array) -> Sums | None:
    """Factors `[.., O, K]` with vectors `[.., P, K]`: `[*batch, O, P]`."""
    own, others = factors.shape[:-2], vectors.shape[:-2]
    batch = np.broadcast_shapes(own, others)
    (positions, width), height = vectors.shape[-2:], factors.height
    if factors.groups == 1:
        total = factors.sums(vectors.reshape(1, math.prod(others) * positions, width))
        parts = (height, math.prod(others), positions)
        return total and total.map(
            lambda y: y.reshape(parts).swapaxes(0, 1).reshape(*batch, height, positions)
        )
    count = math.prod(batch)
    if own != batch:
        factors = matrix(np.broadcast_to(factors.matrix, (*batch, height, width)), transposed=False)
    vectors = np.broadcast_to(vectors, (*batch, positions, width))
    total = factors.sums(vectors.reshape(count, positions, width))
    return total and total.map(lambda y: y.reshape(*batch, height, positions))


def _sums(weight: Any, width: int, groups: int, vectors: Array, bias: Any) -> Sums | None:
    """With a weight `[O, K, 1...]`, prepared unless it is, and `bias [O]`."""
    factors = weight if isinstance(weight, Factors) else Factors(weight, width, groups)
    start = None if bias is None else np.reshape(np.asarray(bias), (groups, -1))
    return factors.sums(vectors, start)
