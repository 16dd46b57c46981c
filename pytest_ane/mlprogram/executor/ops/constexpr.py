"""Quantized values: compressed weights, which sessions expand once, and 8-bit activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.shape import cast
from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.executor.weights import Packed, decode


@register("quantize", opset="iOS17")
def quantize(
    input: Any, scale: Any, output_dtype: str, zero_point: Any = 0, axis: Any = None
) -> Any:
    """clip(round(input / scale) + zero_point), ties to even; scalars, or vectors along an axis."""
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
    """A scalar as it is, in float32; a vector `[n]` laid along an axis of n elements."""
    array = np.asarray(parameter)
    if not isinstance(parameter, np.ndarray) or array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    if array.ndim == 0:
        return array
    axis = range(len(shape))[axis]
    if array.shape != shape[axis : axis + 1]:
        raise ValueError(f"{array.shape} values of {name} along an axis of {shape[axis]}")
    return array.reshape([-1 if i == axis else 1 for i in range(len(shape))])


@register("constexpr_lut_to_dense", opset="iOS16", moves=True)
def constexpr_lut_to_dense_packed(indices: Any, lut: Any, shape: Any) -> Any:
    """dense[i] = lut[indices[i]], the indices of log2(len(lut)) bits packed, lowest bits first."""
    bits = len(lut).bit_length() - 1
    packed = Packed(np.asarray(indices, np.uint8), bits, tuple(integers(shape)))
    return decode(packed, np.reshape(lut, (1, -1)))


@register("constexpr_lut_to_dense", opset="iOS18", moves=True)
def constexpr_lut_to_dense(indices: Any, lut: Any, vector_axis: Any = None) -> Any:
    """dense[i] = lut[block of i, indices[i]].

    `lut [*blocks, 2^n, v]` has the rank of `indices` plus 2: along each axis, blocks of equal
    length share a table. Entries of length v > 1 spread along `vector_axis`.
    """
    *blocks, entries, length = lut.shape
    sizes = block_sizes(indices.shape, tuple(blocks))
    by_rows = length == 1 and all(b == 1 for b in blocks[1:])
    indices = np.asarray(indices)
    if indices.size and indices.max() >= entries:
        raise ValueError(f"an index {indices.max()} into tables of {entries} entries")
    if by_rows:
        return _by_rows(indices, lut.reshape(blocks[0], entries), sizes[0])
    number = np.zeros(indices.shape, np.int64)
    positions = np.indices(indices.shape, sparse=True)
    for position, b, size in zip(positions, blocks, sizes, strict=True):
        number = number * b + position // size
    dense = lut.reshape(math.prod(blocks), entries, length)[number, indices]
    return dense[..., 0] if length == 1 else _spread(dense, vector_axis)


def _spread(dense: Any, vector_axis: Any) -> Any:
    """Vectors of the last axis in a row along another axis, `[*shape, v]` to `[.., v n, ..]`."""
    rank = dense.ndim - 1
    axis = range(rank)[vector_axis]
    target = list(dense.shape[:-1])
    target[axis] *= dense.shape[-1]
    return np.moveaxis(dense, -1, axis + 1).reshape(target)


def block_sizes(shape: tuple[int, ...], blocks: tuple[int, ...]) -> list[int]:
    """Elements of a block along each axis."""
    pairs = zip(shape, blocks, strict=False)
    if len(shape) != len(blocks) or any(b == 0 or n % b for n, b in pairs):
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
    if offset is not None and np.shape(offset) != scale.shape:
        raise ValueError(f"an offset of shape {np.shape(offset)} for a scale of {scale.shape}")
    data = np.asarray(data)
    for axis, size in enumerate(block_sizes(data.shape, scale.shape)):
        if 1 < size < data.shape[axis]:
            scale = np.repeat(scale, size, axis=axis)
            offset = None if offset is None else np.repeat(offset, size, axis=axis)
    # Integers of a byte and less are exact in the scale's type, and so are their differences.
    values = data.astype(scale.dtype)
    return scale * (values if offset is None else values - offset.astype(scale.dtype))


register("constexpr_affine_dequantize", opset="iOS16")(
    lambda quantized_data, zero_point, scale, axis=0: dequantize(
        quantized_data, scale, zero_point, axis
    )
)
# fp16 is carried as float32.
register("constexpr_cast", opset="iOS16")(
    lambda source_val, output_dtype: cast(source_val, output_dtype)
)


@register("constexpr_sparse_to_dense", opset="iOS16", moves=True)
def constexpr_sparse_to_dense_packed(nonzero_data: Any, mask: Any, shape: Any) -> Any:
    """The values where the mask's bits are set, in row-major order, lowest bits first; else 0."""
    bits = Packed(np.asarray(mask, np.uint8), 1, tuple(integers(shape)))
    return constexpr_sparse_to_dense(nonzero_data, bits)


@register("constexpr_sparse_to_dense", opset="iOS18", moves=True)
def constexpr_sparse_to_dense(nonzero_data: Any, mask: Any) -> Any:
    """The values where the mask is 1, in row-major order; else 0."""
    values = np.asarray(nonzero_data)
    where = np.asarray(mask) != 0
    if values.shape != (count := np.count_nonzero(where),):
        raise ValueError(f"values of shape {values.shape} for {count} ones in the mask")
    dense = np.zeros(where.shape, values.dtype)
    dense[where] = values
    return dense


@register("constexpr_lut_to_sparse", opset="iOS18", moves=True)
def constexpr_lut_to_sparse(
    indices_mask: Any, indices_nonzero_data: Any, lut: Any, vector_axis: Any = None
) -> Any:
    """The mask and the values of palettized indices under a mask.

    Positions in the dense layout choose the table. Entries of length v > 1 spread along
    `vector_axis`, and the mask with them.
    """
    mask = np.asarray(indices_mask)
    indices = constexpr_sparse_to_dense(indices_nonzero_data, mask)
    dense = constexpr_lut_to_dense(indices, lut, vector_axis)
    if lut.shape[-1] > 1:
        mask = np.repeat(mask, lut.shape[-1], axis=int(vector_axis))
    return mask, dense[mask != 0]


@register("constexpr_sparse_blockwise_shift_scale", opset="iOS18")
def constexpr_sparse_blockwise_shift_scale(
    data_mask: Any, nonzero_data: Any, scale: Any, offset: Any = None
) -> Any:
    """The mask and the values `scale (nonzero_data - offset)`.

    Positions in the dense layout choose the block's scale and offset.
    """
    mask = np.asarray(data_mask)
    data = constexpr_sparse_to_dense(nonzero_data, mask)
    return mask, constexpr_blockwise_shift_scale(data, scale, offset)[mask != 0]
