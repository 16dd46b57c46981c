"""Compressed weights expanded; activations quantized."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_ane.mlprogram.executor import eval_op
from pytest_ane.mlprogram.executor.weights import Packed
from tests.mlprogram.executor.ops.oracle import case, f32, noise, same


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (1, [[[1, 1], [2, 2], [3, 3], [7, 1], [8, 2], [9, 3]],
             [[7, 7], [8, 8], [9, 9], [1, 1], [2, 2], [3, 3]]]),
        (2, [[[1, 2, 3, 1, 2, 3], [7, 8, 9, 1, 2, 3]], [[7, 8, 9, 7, 8, 9], [1, 2, 3, 1, 2, 3]]]),
    ],
)  # fmt: skip
def test_vectors_in_place_of_values(axis: int, expected: Any) -> None:
    """Case 2 of the documentation."""
    indices = np.array([[[0, 0], [1, 0]], [[1, 1], [0, 0]]], np.uint8)
    lut = f32([1, 2, 3, 7, 8, 9]).reshape(1, 1, 1, 2, 3)
    same("constexpr_lut_to_dense", expected, indices=indices, lut=lut, vector_axis=axis)


SHAPES = [((4, 6), b) for b in itertools.product((1, 2, 4), (1, 3, 6))]


@pytest.mark.parametrize(("shape", "blocks"), SHAPES)
@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6, 8])
def test_palettes_by_loops(shape: Any, blocks: Any, nbits: int) -> None:
    indices = np.random.default_rng(nbits).integers(0, 2**nbits, shape).astype(np.uint8)
    lut = noise(*blocks, 2**nbits, 1)
    expected = np.empty(shape, np.float32)
    for i, j in np.ndindex(*shape):
        block = i * blocks[0] // shape[0], j * blocks[1] // shape[1]
        expected[i, j] = lut[(*block, indices[i, j], 0)]
    same("constexpr_lut_to_dense", expected, indices=indices, lut=lut)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 6]))
def test_scales_by_loops(rows: int, columns: int) -> None:
    data = np.random.default_rng(0).integers(-8, 8, (4, 6)).astype(np.int8)
    scale = noise(rows, columns)
    expected = [
        [scale[i * rows // 4, j * columns // 6] * f32(data[i, j]) for j in range(6)]
        for i in range(4)
    ]
    same("constexpr_blockwise_shift_scale", expected, data=data, scale=scale)


@pytest.mark.parametrize("axis", [1, -1])
def test_affine(axis: int) -> None:
    data = np.array([[1, 2], [3, 4]], np.uint8)
    zero, scale = np.array([1, 2], np.uint8), f32([10, 100])
    same("constexpr_affine_dequantize", [[0, 0], [20, 200]], quantized_data=data, zero_point=zero,
         scale=scale, axis=axis)  # fmt: skip
    same("constexpr_affine_dequantize", [[-1, 0], [1, 2]], quantized_data=data,
         zero_point=np.uint8(2), scale=f32(1), axis=0)  # fmt: skip


def test_packed_palettes() -> None:
    """Indices 0, 3, 2, 1, 3, the example of iOS 16's documentation."""
    indices, lut = np.array([0b01101100, 0b11], np.uint8), f32([10, 11, 12, 13])
    same("constexpr_lut_to_dense", [10, 13, 12, 11, 13], opset="iOS16", indices=indices, lut=lut,
         shape=np.array([5], np.uint32))  # fmt: skip
    same("constexpr_lut_to_dense", [[13, 10], [13, 10]], opset="iOS17",
         indices=np.array([0b00110011], np.uint8), lut=lut.astype(np.int8),
         shape=np.array([2, 2], np.uint32))  # fmt: skip


MASK = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]],
                np.uint8)  # fmt: skip
INDICES = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], np.uint8)


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=4), elements=st.integers(0, 1)))
def test_pruning_and_back(mask: np.ndarray[Any, Any]) -> None:
    weight = np.arange(1, mask.size + 1, dtype=np.float32).reshape(mask.shape)
    values, packed = weight[mask != 0], np.packbits(mask, bitorder="little")
    same("constexpr_sparse_to_dense", weight * mask, nonzero_data=values, mask=mask)
    same("constexpr_sparse_to_dense", weight * mask, opset="iOS16", nonzero_data=values,
         mask=packed, shape=np.array(mask.shape, np.uint32))  # fmt: skip


def test_palettes_under_a_mask() -> None:
    mask, values = eval_op("constexpr_lut_to_sparse", indices_mask=MASK,
                           indices_nonzero_data=INDICES,
                           lut=f32([2, 3]).reshape(1, 1, 2, 1))  # fmt: skip
    np.testing.assert_array_equal(mask, MASK)
    assert values.tolist() == [2, 3, 3, 2, 3, 3, 2, 2, 3]
    lut = f32([2, 3, 4, 5]).reshape(2, 1, 2, 1)
    _, values = eval_op("constexpr_lut_to_sparse", indices_mask=MASK,
                        indices_nonzero_data=INDICES, lut=lut)  # fmt: skip
    assert values.tolist() == [2, 3, 3, 2, 3, 5, 4, 4, 5]


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


ONE_TO_FOUR = f32([1, 2, 3, 4]).reshape(1, 1, 2, 2)


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", -128, 127), ("uint8", 0, 255)])
def test_ties_go_to_even_and_the_range_saturates(dtype: str, low: int, high: int) -> None:
    same("quantize", [0, 2, 2, 4], input=f32([0.5, 1.5, 2.5, 3.5]), scale=1, output_dtype=dtype)
    values = f32([-1e9, 1e9, -np.inf, np.inf, high + 0.4, high + 0.6])
    same("quantize", [low, high, low, high, high, high], input=values, scale=1, output_dtype=dtype)
    result = eval_op("quantize", input=f32([3]), scale=1, output_dtype=dtype)
    assert result.dtype == np.dtype(dtype)
    same("quantize", [0], input=f32([np.nan]), scale=1, output_dtype=dtype)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_there_and_back_as_torch(axis: int | None, dtype: str) -> None:
    x, rng = 20 * noise(3, 4, 5), np.random.default_rng(1)
    size = () if axis is None else x.shape[axis]
    scale = rng.uniform(0.05, 0.5, size).astype(np.float32)
    zero = rng.integers(0, 100, size).astype(dtype)
    limits, parameters = np.iinfo(dtype), [torch.from_numpy(np.array(a)) for a in (scale, zero)]
    parameters[1] = parameters[1].int()
    fake: Any = torch.fake_quantize_per_tensor_affine
    if axis is not None:
        fake, parameters = torch.fake_quantize_per_channel_affine, [*parameters, axis % 3]
    expected = fake(torch.from_numpy(x), *parameters, limits.min, limits.max)
    shared = {"scale": scale, "zero_point": zero, "axis": axis}
    small = eval_op("quantize", input=x, output_dtype=dtype, **shared)
    again = eval_op("dequantize", input=small, **shared)
    np.testing.assert_allclose(again, expected.numpy(), rtol=1e-6, atol=1e-6)


LITERALS = [
    case("constexpr_blockwise_shift_scale", [[-255.0]], data=np.array([[-128]], np.int8),
         scale=f32([[1]]), offset=np.array([[127]], np.int8)),
    case("constexpr_blockwise_shift_scale", [[1, 5]], data=np.array([[1, 3]], np.uint8),
         scale=f32([[2]]), offset=f32([[0.5]])),
    case("constexpr_blockwise_shift_scale", [[1, -3]], data=f32([[0.5, -1.5]]), scale=f32([[2]])),
    # Elements 2 and 3 of five, the example of iOS 16's documentation.
    case("constexpr_sparse_to_dense", [0, 0, 7, 8, 0], opset="iOS16", nonzero_data=f32([7, 8]),
         mask=np.array([0b00001100], np.uint8), shape=np.array([5], np.uint32)),
    case("constexpr_sparse_to_dense", [[1, 0, 2], [0, 0, 0], [0, 0, 3]], opset="iOS17",
         nonzero_data=np.array([1, 2, 3], np.int8), mask=np.array([0b101, 0b1], np.uint8),
         shape=np.array([3, 3], np.uint32)),
    case("constexpr_sparse_to_dense", [[0, 5], [6, 0]], nonzero_data=f32([5, 6]),
         mask=np.array([[0, 1], [1, 0]], np.uint8)),
    case("constexpr_sparse_to_dense", [[0, 5], [6, 0]], nonzero_data=f32([5, 6]),
         mask=Packed(np.array([0b0110], np.uint8), 1, (2, 2))),
    case("constexpr_sparse_to_dense", [0, 0], nonzero_data=f32([]), mask=np.zeros(2, np.uint8)),
    case("quantize", [[1, 2, 3], [1, 2, 3]], input=f32([[0, 2, 4], [0, 2, 4]]),
         zero_point=np.uint8(1), scale=np.float32(2), output_dtype="uint8"),
    case("quantize", np.array([3, 5, 5, 6]).reshape(1, 1, 2, 2), input=ONE_TO_FOUR,
     zero_point=np.array([2, 4], np.int8), scale=f32([1, 2]), axis=3, output_dtype="int8"),
    case("quantize", [0, 1, -3], input=f32([0, 2, -6]), scale=2.0, output_dtype="int8"),
    case("dequantize", [[-2, 0, 2], [-2, 0, 2]], input=np.array([[0, 1, 2]] * 2, np.uint8),
         zero_point=np.uint8(1), scale=np.float32(2)),
    case("dequantize", np.array([-1, -4, 1, 0]).reshape(1, 1, 2, 2),
         input=np.array([1, 2, 3, 4], np.int8).reshape(1, 1, 2, 2), scale=f32([1, 2]),
         zero_point=np.array([2, 4], np.int8), axis=-1),
    case("dequantize", [6, -6], input=np.array([3, -3], np.int8), scale=2),
    case("dequantize", [-255, 0], input=np.array([-128, 127], np.int8), zero_point=127, scale=1),
    case("dequantize", [-255], input=np.array([0], np.uint8), zero_point=255, scale=1),
    # An odd zero point would turn ties the other way.
    case("quantize", [1, 3], input=f32([0.5, 1.5]), zero_point=1, scale=1, output_dtype="int8"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)


def test_scales_by_block() -> None:
    data = np.array([[1, 2, 3, 4], [-1, -2, -3, -4]], np.int8)
    scale = f32([[1, 10], [100, 1000]])
    expected = [[1, 2, 30, 40], [-100, -200, -3000, -4000]]
    same("constexpr_blockwise_shift_scale", expected, data=data, scale=scale)
    offset = np.array([[1, 0], [0, -4]], np.int8)
    expected = [[0, 1, 30, 40], [-100, -200, 1000, 0]]
    same("constexpr_blockwise_shift_scale", expected, data=data, scale=scale, offset=offset)
