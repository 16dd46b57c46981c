"""Pruned weights: a mask and the values under it, which may be quantized or palettized."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.ops.constexpr import (
    constexpr_blockwise_shift_scale,
    constexpr_lut_to_dense,
)
from pytest_ane.reference.palettes import Packed
from pytest_ane.reference.registry import register


@register("constexpr_sparse_to_dense", opset="iOS16", moves=True)
def constexpr_sparse_to_dense_packed(nonzero_data: Any, mask: Any, shape: Any) -> Any:
    """The values where the mask's bits are set, in row-major order, lowest bits first; else 0."""
    bits = Packed(np.asarray(mask, np.uint8), 1, tuple(int(d) for d in shape))
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
