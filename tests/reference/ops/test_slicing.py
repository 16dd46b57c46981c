"""Slices and gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, f32, noise, same

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


def test_gather() -> None:
    same("gather", [[7, 8, 9], [1, 2, 3]], x=X, indices=np.array([2, 0]), axis=0)
    same("gather", [[3, 1], [6, 4], [9, 7]], x=X, indices=np.array([-1, 0]), axis=1)
    same("gather", [2, 5, 8], x=X, indices=np.int32(1), axis=-1)
    same("gather", X[[[0, 1], [2, 0]]], x=X, indices=np.array([[0, 1], [2, 0]]))


def test_gather_in_batches() -> None:
    indices = np.array([[0, 0], [2, 1], [1, 1]])
    same("gather", [[1, 1], [6, 5], [8, 8]], x=X, indices=indices, axis=1, batch_dims=1)
    x, picks = noise(2, 3, 4, 5), np.random.default_rng(0).integers(0, 4, (2, 3, 2))
    expected = [[x[i, j][picks[i, j]] for j in range(3)] for i in range(2)]
    same("gather", expected, x=x, indices=picks, axis=2, batch_dims=2)


def test_gather_along_axis() -> None:
    indices = np.array([[2, 0, 1], [0, 0, 0]])
    same("gather_along_axis", [[7, 2, 6], [1, 2, 3]], x=X, indices=indices, axis=0)


def test_an_index_beyond_the_end() -> None:
    with pytest.raises(Exception, match="out of bounds"):
        eval_op("gather", x=X, indices=np.array([3]), axis=0)
