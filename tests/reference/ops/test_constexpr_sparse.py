"""Pruned weights, by the examples of their documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_ane.core.errors import ExecutionError
from pytest_ane.reference import eval_op
from pytest_ane.reference.palettes import Packed
from tests.reference.ops.oracle import f32, same

MASK = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]],
                np.uint8)  # fmt: skip
INDICES = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], np.uint8)


def test_a_packed_mask() -> None:
    """Elements 2 and 3 of five, the example of iOS 16's documentation."""
    same("constexpr_sparse_to_dense", [0, 0, 7, 8, 0], opset="iOS16", nonzero_data=f32([7, 8]),
         mask=np.array([0b00001100], np.uint8), shape=np.array([5], np.uint32))  # fmt: skip
    same("constexpr_sparse_to_dense", [[1, 0, 2], [0, 0, 0], [0, 0, 3]], opset="iOS17",
         nonzero_data=np.array([1, 2, 3], np.int8), mask=np.array([0b101, 0b1], np.uint8),
         shape=np.array([3, 3], np.uint32))  # fmt: skip


def test_a_mask() -> None:
    same("constexpr_sparse_to_dense", [[0, 5], [6, 0]], nonzero_data=f32([5, 6]),
         mask=np.array([[0, 1], [1, 0]], np.uint8))  # fmt: skip
    same("constexpr_sparse_to_dense", [[0, 5], [6, 0]], nonzero_data=f32([5, 6]),
         mask=Packed(np.array([0b0110], np.uint8), 1, (2, 2)))  # fmt: skip
    same("constexpr_sparse_to_dense", [0, 0], nonzero_data=f32([]), mask=np.zeros(2, np.uint8))


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=4), elements=st.integers(0, 1)))
def test_pruning_and_back(mask: np.ndarray[Any, Any]) -> None:
    weight = np.arange(1, mask.size + 1, dtype=np.float32).reshape(mask.shape)
    values, packed = weight[mask != 0], np.packbits(mask, bitorder="little")
    same("constexpr_sparse_to_dense", weight * mask, nonzero_data=values, mask=mask)
    same("constexpr_sparse_to_dense", weight * mask, opset="iOS16", nonzero_data=values,
         mask=packed, shape=np.array(mask.shape, np.uint32))  # fmt: skip


@pytest.mark.parametrize("count", [1, 3])
def test_values_that_do_not_fit_the_mask(count: int) -> None:
    with pytest.raises(ExecutionError, match=r"values of shape \(\d,\) for 2 ones"):
        eval_op("constexpr_sparse_to_dense", nonzero_data=np.ones(count, np.float32),
                mask=np.array([[1, 0], [0, 1]], np.uint8))  # fmt: skip


def test_a_packed_mask_too_short() -> None:
    with pytest.raises(ExecutionError, match="1 bytes"):
        eval_op("constexpr_sparse_to_dense", opset="iOS16", nonzero_data=f32([1]),
                mask=np.array([1], np.uint8), shape=np.array([9], np.uint32))  # fmt: skip


def test_palettes_under_a_mask() -> None:
    mask, values = eval_op("constexpr_lut_to_sparse", indices_mask=MASK,
                           indices_nonzero_data=INDICES,
                           lut=f32([2, 3]).reshape(1, 1, 2, 1))  # fmt: skip
    np.testing.assert_array_equal(mask, MASK)
    assert values.tolist() == [2, 3, 3, 2, 3, 3, 2, 2, 3]


def test_pairs_under_a_mask() -> None:
    """The mask grows along the axis on which the pairs lie."""
    lut = f32([2, 20, 3, 30]).reshape(1, 1, 2, 2)
    mask, values = eval_op("constexpr_lut_to_sparse", indices_mask=MASK,
                           indices_nonzero_data=INDICES, lut=lut,
                           vector_axis=0)  # fmt: skip
    np.testing.assert_array_equal(mask, np.repeat(MASK, 2, axis=0))
    dense = eval_op("constexpr_sparse_to_dense", nonzero_data=values, mask=mask)
    expected = [
        [2, 3, 0, 0, 0, 0], [20, 30, 0, 0, 0, 0], [3, 2, 0, 0, 0, 3], [30, 20, 0, 0, 0, 30],
        [0, 3, 2, 0, 2, 0], [0, 30, 20, 0, 20, 0], [0, 0, 0, 3, 0, 0], [0, 0, 0, 30, 0, 0],
    ]  # fmt: skip
    np.testing.assert_array_equal(dense, expected)


def test_a_palette_for_each_half_of_the_rows_under_a_mask() -> None:
    lut = f32([2, 3, 4, 5]).reshape(2, 1, 2, 1)
    _, values = eval_op("constexpr_lut_to_sparse", indices_mask=MASK,
                        indices_nonzero_data=INDICES, lut=lut)  # fmt: skip
    assert values.tolist() == [2, 3, 3, 2, 3, 5, 4, 4, 5]


def test_scales_under_a_mask() -> None:
    """A scale and an offset for each column."""
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]], np.uint8)
    data = np.array([10, 11, 3, 4, 5, 6, 7, 8, 9], np.int8)
    found, values = eval_op("constexpr_sparse_blockwise_shift_scale", data_mask=mask,
                            nonzero_data=data, scale=f32([[1, 10, 100, 1000]]),
                            offset=np.array([[1, 2, 3, 4]], np.int8))  # fmt: skip
    np.testing.assert_array_equal(found, mask)
    assert values.tolist() == [9, 90, 2, 20, 200, 300, 3000, 7, 70]
    _, values = eval_op("constexpr_sparse_blockwise_shift_scale", data_mask=mask,
                        nonzero_data=data, scale=f32([[2]] * 2 + [[1]] * 2))  # fmt: skip
    assert values.tolist() == [20, 22, 6, 8, 10, 6, 7, 8, 9]
