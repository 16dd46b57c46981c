"""Compressed weights: `constexpr_*` operations, expanded once when a session is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.ops.shape import cast
from pytest_ane.reference.registry import register


@register("constexpr_lut_to_dense", opset="iOS18")
def constexpr_lut_to_dense(indices: Any, lut: Any, vector_axis: Any = None) -> Any:
    """dense[i] = lut[block of i, indices[i]].

    `lut [*blocks, 2^n, v]` has the rank of `indices` plus 2: along each axis, blocks of equal
    length share a table. Entries of length v > 1 spread along `vector_axis`.
    """
    *blocks, entries, length = lut.shape
    sizes = _block_sizes(indices.shape, tuple(blocks))
    if indices.size and indices.max() >= entries:
        raise ValueError(f"an index {indices.max()} into tables of {entries} entries")
    if length == 1 and all(b == 1 for b in blocks[1:]):
        return _by_rows(indices, lut.reshape(blocks[0], entries), sizes[0])
    number = np.zeros(indices.shape, np.int64)
    for axis, (b, size) in enumerate(zip(blocks, sizes, strict=True)):
        position = np.arange(indices.shape[axis]) // size
        number = number * b + position.reshape([-1 if i == axis else 1 for i in range(len(blocks))])
    dense = lut.reshape(-1, entries, length)[number, indices]
    if length == 1:
        return dense[..., 0]
    axis = int(vector_axis) % indices.ndim
    dense = np.moveaxis(dense, -1, axis + 1)
    target = list(indices.shape)
    target[axis] *= length
    return dense.reshape(target)


def _block_sizes(shape: tuple[int, ...], blocks: tuple[int, ...]) -> list[int]:
    """Elements of a block along each axis."""
    if len(shape) != len(blocks) or any(
        b == 0 or n % b for n, b in zip(shape, blocks, strict=True)
    ):
        raise ValueError(f"{blocks} blocks do not divide the shape {shape}")
    return [n // b for n, b in zip(shape, blocks, strict=True)]


def _by_rows(indices: Any, tables: Any, rows: int) -> Any:
    """Groups of output channels with a table each: one look-up per group, written in place."""
    dense = np.empty(indices.shape, tables.dtype)
    for i, table in enumerate(tables):
        part = slice(i * rows, (i + 1) * rows)
        np.take(table, indices[part], out=dense[part], mode="clip")
    return dense


@register("constexpr_blockwise_shift_scale", opset="iOS18")
def constexpr_blockwise_shift_scale(data: Any, scale: Any, offset: Any = None) -> Any:
    """`scale (data - offset)`, scale and offset repeated over blocks along every axis."""
    for axis, size in enumerate(_block_sizes(data.shape, scale.shape)):
        if 1 < size < data.shape[axis]:
            scale = np.repeat(scale, size, axis=axis)
            offset = None if offset is None else np.repeat(offset, size, axis=axis)
    values = data.astype(np.float32)
    return scale * (values if offset is None else values - offset.astype(np.float32))


@register("constexpr_affine_dequantize", opset="iOS16")
def constexpr_affine_dequantize(
    quantized_data: Any, zero_point: Any, scale: Any, axis: int = 0
) -> Any:
    """`scale (quantized_data - zero_point)`, both scalar or along an axis."""
    axis = axis % quantized_data.ndim
    shape = [-1 if i == axis else 1 for i in range(quantized_data.ndim)]
    zero = np.reshape(np.asarray(zero_point, np.float32), shape if np.ndim(zero_point) else ())
    factor = np.reshape(np.asarray(scale, np.float32), shape if np.ndim(scale) else ())
    return factor * (quantized_data.astype(np.float32) - zero)


@register("constexpr_cast", opset="iOS16")
def constexpr_cast(source_val: Any, output_dtype: str) -> Any:
    """The values in another type."""
    return cast(source_val, output_dtype)
