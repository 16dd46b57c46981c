"""Integer arithmetic: activations and weights of 8 bits (W8A8), and scales after accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.core.arrays import Array, FloatArray
from pytest_ane.reference.ane.accumulator import LIMIT, Weight, sums
from pytest_ane.reference.ane.fp16 import decode, r16
from pytest_ane.reference.ane.grades import Grade, rule

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


@rule(Grade.RECORDED, "quantize")
def quantize(
    input: Any, scale: Any, output_dtype: str, zero_point: Any = 0, axis: int | None = None
) -> Array:
    """`clamp(round(x / scale) + zero_point)`, ties away from zero.

    Grade: recorded at unit scale (M5, cadamcat/llms-on-apple-neural-engine: all 63,488 finite fp16
    numbers); with another scale the place of the rounding inside the division is unknown.
    """
    x, scale = decode(input).astype(np.float64), np.asarray(scale, np.float64)
    zero_point = np.asarray(zero_point, np.float64)
    if axis is not None and scale.ndim:
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
        scale = scale.reshape(shape)
        zero_point = zero_point.reshape(shape) if zero_point.ndim else zero_point
    steps = x / scale
    nearest = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
    codes: Array = np.clip(nearest + zero_point, *RANGES[output_dtype]).astype(output_dtype)
    return codes


def w8a8(codes: Array, weight: Array, scale: Any, weight_scale: Any) -> FloatArray:
    """Sum of products of 8-bit codes, `[P, K]` and `[O, K]`, scaled: `[O, P]`.

    The accumulator has 32 bits, |S| >= 2^31 gives an infinity; the result is `r16(S s_x s_w)`, and
    may exceed 32768. Grade: recorded with powers of two as scales (30 outputs on M6, 751K
    data/06_numerics/numerics_i8); elsewhere the place of a rounding inside the scaling is unknown.

    Args:
        codes: of the activations, less their zero point.
        weight: codes of the weights.
        scale: of the activations, one number.
        weight_scale: of the weights, one number or `[O]`.
    """
    total = weight.astype(np.int64) @ codes.astype(np.int64).T
    factor = np.float64(scale) * np.reshape(np.asarray(weight_scale, np.float64), (-1, 1))
    overflowed = np.abs(total) >= LIMIT
    return r16(np.where(overflowed, np.sign(total) * np.inf, total * factor))


def scaled_after(codes: Array, vectors: Array, scale: Array) -> FloatArray:
    """Weight codes `[O, K]` times fp16 `vectors [P, K]`; the fp16 `scale [O]` comes afterwards.

    `r16(r16(sum of codes * x) * scale)`, the sum in the Q15.16 accumulator, so that a sum beyond
    32768 is infinite however small it is once scaled. Grade: recorded on one coordinate (M5, Core
    AI), inferred from statistics for the rest (7,163,904 gate values, cadamcat
    cross-model-validation.json); for int8 weights of Core ML unknown. Off by default.
    """
    total = sums(Weight.of(codes.astype(np.float32)[None]), vectors[None]).values[0]
    return r16(total.astype(np.float64) * decode(scale).astype(np.float64)[:, None])
