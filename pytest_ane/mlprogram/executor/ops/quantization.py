"""Quantizing activations to 8-bit integers and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.registry import register


@register("quantize", opset="iOS17")
def quantize(
    input: Any, scale: Any, output_dtype: str, zero_point: Any = 0, axis: Any = None
) -> Any:
    """clip(round(input / scale) + zero_point), ties to even; scalars, or vectors along an axis."""
    if output_dtype not in ("int8", "uint8"):
        raise ValueError(f"output_dtype {output_dtype!r}, neither 'int8' nor 'uint8'")
    scale = along(scale, input.shape, axis, "scale")
    zero = along(zero_point, input.shape, axis, "zero_point").astype(scale.dtype)
    limits = np.iinfo(output_dtype)
    values = np.clip(np.rint(input / scale) + zero, limits.min, limits.max)
    # No 8-bit integer stands for NaN; what a cast makes of it depends on the machine.
    return np.nan_to_num(values, copy=False, nan=0).astype(output_dtype)


@register("dequantize", opset="iOS17")
def dequantize(input: Any, scale: Any, zero_point: Any = 0, axis: Any = None) -> Any:
    """`scale (input - zero_point)`; scalars, or vectors along an axis."""
    scale = along(scale, input.shape, axis, "scale")
    zero = along(zero_point, input.shape, axis, "zero_point").astype(scale.dtype)
    return scale * (input.astype(scale.dtype) - zero)


def along(parameter: Any, shape: tuple[int, ...], axis: Any, name: str) -> Any:
    """A scalar as it is, in float32; a vector `[n]` laid along an axis of n elements.

    Raises:
        ValueError: it has another rank, or another length than the axis.
        IndexError: there is no such axis.
    """
    array = np.asarray(parameter)
    if (
        array.dtype.kind != "f"
        or array.dtype == np.float16
        or not isinstance(parameter, np.ndarray)
    ):
        array = array.astype(np.float32)
    if array.ndim == 0:
        return array
    if array.ndim > 1:
        raise ValueError(f"{name} of shape {array.shape} is neither scalar nor vector")
    if axis is None or not -len(shape) <= axis < len(shape):
        raise IndexError(f"{name} is a vector, along axis {axis} of {len(shape)}")
    axis = int(axis) % len(shape)
    if len(array) != shape[axis]:
        raise ValueError(f"{len(array)} values of {name} along an axis of {shape[axis]}")
    return array.reshape([-1 if i == axis else 1 for i in range(len(shape))])
