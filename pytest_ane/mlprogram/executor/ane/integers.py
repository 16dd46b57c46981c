"""Integer arithmetic: activations and weights of 8 bits (W8A8), and scales after accumulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.executor.ane.accumulator import Sums, Weight, sums
from pytest_ane.mlprogram.executor.ane.fp16 import decode, r16
from pytest_ane.mlprogram.executor.ane.grades import Grade, rule
from pytest_ane.mlprogram.executor.ane.kernel import LIMIT
from pytest_ane.mlprogram.executor.ops.quantization import along

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
    codes: Array = np.clip(nearest + zero_point, *RANGES[output_dtype]).astype(output_dtype)
    return codes


@rule(Grade.INFERRED, "dequantize")
def dequantize(input: Any, scale: Any, zero_point: Any = 0, axis: int | None = None) -> FloatArray:
    """`r16(scale (input - zero_point))`: exact, then rounded once, as `mul` is."""
    scale = along(scale, input.shape, axis, "scale").astype(np.float64)
    return r16(scale * (input.astype(np.float64) - along(zero_point, input.shape, axis, "zero")))


def w8a8(
    codes: Array, weight: Array, scale: float, weight_scale: Any, bias: Array | None = None
) -> Sums:
    """Sum of products of 8-bit codes, `[.., P, K]` and `[.., O, K]`, scaled: `[.., O, P]`.

    The accumulator has 32 bits, |S| >= 2^31 gives an infinity; the result is `r16(S s_x s_w)`, and
    may exceed 32768. Grade: recorded with powers of two as scales (30 outputs on M6, 751K
    data/06_numerics/numerics_i8); elsewhere the place of a rounding inside the scaling is unknown,
    and so is that of a bias, which is added before it here.

    Args:
        codes: of the activations, less their zero point.
        weight: codes of the weights.
        scale: of the activations.
        weight_scale: of the weights, one number or `[.., O]`.
        bias: `[.., O]`.
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
