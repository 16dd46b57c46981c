"""Slices, slices replaced, and sliding windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, f32, same

X = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def test_slice_by_index() -> None:
    same("slice_by_index", [[5, 6]], x=X, begin=[1, 1], end=[2, 3])
    same("slice_by_index", [[1, 3], [7, 9]], x=X, begin=[0, 0], end=[3, 3], stride=[2, 2])
    same("slice_by_index", [[6]], x=X, begin=[-2, -1], end=[-1, 3])


def test_masks() -> None:
    same("slice_by_index", X, x=X, begin=[2, 2], end=[0, 0], begin_mask=[True, True],
         end_mask=[True, True])  # fmt: skip
    same("slice_by_index", [4, 5], x=X, begin=[1, 0], end=[0, 2], squeeze_mask=[True, False])
    same("slice_by_index", f32(6), x=X, begin=[1, -1], end=[0, 0], squeeze_mask=[True, True])


def test_backwards() -> None:
    same("slice_by_index", X[::-1], x=X, begin=[-1, 0], end=[0, 3], stride=[-1, 1],
         end_mask=[True, True])  # fmt: skip


@given(arrays(), st.data())
def test_slices_as_python_has_them(x: Any, data: st.DataObject) -> None:
    bounds = [
        (data.draw(st.integers(0, n)), data.draw(st.integers(0, n)), data.draw(st.integers(1, 3)))
        for n in x.shape
    ]
    begin, end, stride = (list(v) for v in zip(*bounds, strict=True))
    expected = x[tuple(slice(*b) for b in bounds)]
    same("slice_by_index", expected, x=x, begin=begin, end=end, stride=stride)


def test_slice_by_size() -> None:
    same("slice_by_size", [[5, 6], [8, 9]], x=X, begin=[1, 1], size=[2, -1])


def test_sizes_from_the_end() -> None:
    same("slice_by_size", [[4, 5], [7, 8]], x=X, begin=[-2, -3], size=[2, 2])
    same("slice_by_size", X[1:, 2:], x=X, begin=[-2, -1], size=[-1, -1])
    same("slice_by_size", np.empty((0, 3)), x=X, begin=[3, 0], size=[0, 3])


@pytest.mark.parametrize(
    ("begin", "size"), [([2, 0], [2, 1]), ([-4, 0], [1, 1]), ([4, 0], [-1, 1])]
)
def test_sizes_beyond_the_end(begin: list[int], size: list[int]) -> None:
    with pytest.raises(Exception, match="beyond"):
        eval_op("slice_by_size", x=X, begin=begin, size=size)


# Bounds, stride and masks (begin, end, squeeze), and the slice they mean; most are coremltools'.
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SLICES: list[Any] = [
    ([1, 1, 1], [2, 2, 2], None, (0, 0, 0), np.s_[1:2, 1:2, 1:2]),
    ([-3, -3, -3], [-1, -1, -1], None, (0, 0, 0), np.s_[-3:-1, -3:-1, -3:-1]),
    ([0, 0, -3], [-1, -2, -2], None, (0, 0, 0), np.s_[0:-1, 0:-2, -3:-2]),
    ([-1, -1, -1], [0, 1, -3], [-2, -1, -3], (0, 0, 0), np.s_[-1:0:-2, -1:1:-1, -1:-3:-3]),
    ([1, 1, 1], [2, 3, 4], [1, 1, 2], (0b101, 0, 0), np.s_[:2, 1:3, :4:2]),
    ([1, 1, 1], [2, 3, 4], [1, 1, 2], (0b101, 0b110, 0), np.s_[:, 1:, :4:2]),
    ([1, 1, 1], [2, 3, 3], [1, 1, 2], (0b001, 0b100, 0b010), np.s_[1::1, 1, :3:2]),
    ([0, 0, 0], [0, 0, 0], [1, 1, 1], (0b111, 0b111, 0), np.s_[:, :, :]),
    ([1, 1, 1], [2, 2, 0], [1, 1, 1], (0, 0, 0b001), np.s_[1:2, 1:2, 1]),
    ([1, 0, 0], [2, 0, 0], None, (0b011, 0b011, 0), np.s_[1:2, ...]),
    ([0, 0, 1], [0, 0, 0], None, (0b110, 0b110, 0b001), np.s_[..., 1]),
    ([1, 2, 3], [0, 0, 0], [-1, -1, -2], (0b111, 0b111, 0), np.s_[::-1, ::-1, ::-2]),
    ([0, 9, -9], [9, 1, 2], [1, -1, 1], (0, 0, 0), np.s_[0:9, 9:1:-1, -9:2]),
    ([5, 1, 0], [0, 2, 1], None, (0b100, 0, 0b100), np.s_[0, 1:2, 0:1]),
    ([0, 2, 0], [1, 2, 4], None, (0, 0, 0), np.s_[0:1, 2:2, 0:4]),
]


def masks(bits: tuple[int, int, int]) -> dict[str, Any]:
    names = ("begin_mask", "end_mask", "squeeze_mask")
    return {n: [bool(b & 1 << i) for i in (2, 1, 0)] for n, b in zip(names, bits, strict=True) if b}


@pytest.mark.parametrize(("begin", "end", "stride", "bits", "meant"), SLICES)
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_all_masks(begin: Any, end: Any, stride: Any, bits: Any, meant: Any, dtype: Any) -> None:
    bounds = {"begin": np.array(begin, dtype), "end": np.array(end, dtype), "stride": stride}
    same("slice_by_index", CUBE[meant], x=CUBE, **bounds, **masks(bits))
    update = -1 - CUBE[meant]
    expected = CUBE.copy()
    expected[meant] = update
    same("slice_update", expected, x=CUBE, update=update, **bounds, **masks(bits))


@pytest.mark.parametrize("stride", [1, -1])
def test_all_of_a_tensor_is_replaced(stride: int) -> None:
    update = f32([7, 8, 9])
    masks = {"begin_mask": [True], "end_mask": [True], "stride": [stride]}
    same("slice_update", update[::stride], x=f32([1, 2, 3]), update=update, begin=[0], end=[0],
         **masks)  # fmt: skip


def test_the_updated_tensor_stays() -> None:
    x = X.copy()
    result = eval_op("slice_update", x=x, update=f32([[0]]), begin=[0, 0], end=[1, 1])
    np.testing.assert_array_equal(x, X)
    assert not np.shares_memory(result, x)


@pytest.mark.parametrize(
    ("update", "squeeze"),
    [(f32([[1, 1]]), None), (f32([[1]]), [True, False]), (f32(1), [True, True])],
)
def test_an_update_of_another_shape(update: Any, squeeze: Any) -> None:
    with pytest.raises(Exception, match="update has shape"):
        eval_op("slice_update", x=X, update=update, begin=[0, 0], end=[1, 1], squeeze_mask=squeeze)


def test_bounds_for_too_few_axes() -> None:
    with pytest.raises(Exception, match="2 integers are needed"):
        eval_op("slice_by_index", x=X, begin=[0], end=[1])
    with pytest.raises(Exception, match="zero"):
        eval_op("slice_by_index", x=X, begin=[0, 0], end=[1, 1], stride=[0, 1])
    with pytest.raises(Exception, match="out of bounds"):
        eval_op("slice_by_index", x=X, begin=[3, 0], end=[1, 1], squeeze_mask=[True, False])


def test_sliding_windows() -> None:
    same("sliding_windows", [[1, 2], [2, 3], [3, 4]], x=f32([1, 2, 3, 4]), axis=0, size=2)
    same("sliding_windows", [[1, 2], [4, 5]], x=f32([1, 2, 3, 4, 5]), axis=-1, size=2, stride=3)
    x = f32([9, 5, 1, 3]).reshape(1, 4, 1, 1)
    expected = f32([[9, 5], [5, 1], [1, 3]]).reshape(1, 3, 2, 1, 1)
    same("sliding_windows", expected, x=x, axis=1, size=2)


@given(arrays(least=2), st.integers(1, 2), st.integers(1, 3), st.data())
def test_windows_as_torch_has_them(x: Any, size: int, stride: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    expected = torch.from_numpy(x).unfold(axis, size, stride).movedim(-1, axis % x.ndim + 1)
    same("sliding_windows", expected.numpy(), x=x, axis=axis, size=size, stride=stride)


@pytest.mark.parametrize(("size", "stride"), [(4, 1), (0, 1), (1, 0)])
def test_windows_that_do_not_fit(size: int, stride: int) -> None:
    with pytest.raises(Exception, match="sliding_windows fails"):
        eval_op("sliding_windows", x=X, axis=0, size=size, stride=stride)
