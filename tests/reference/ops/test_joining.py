"""Joining, cutting and repeating."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, f32, same

A, B = f32([[1, 2], [3, 4]]), f32([[5, 6], [7, 8]])


def test_concat() -> None:
    same("concat", [[1, 2], [3, 4], [5, 6], [7, 8]], values=(A, B), axis=0)
    same("concat", [[1, 2, 5, 6], [3, 4, 7, 8]], values=(A, B), axis=-1)


def test_concat_by_turns() -> None:
    same("concat", [[1, 5, 2, 6], [3, 7, 4, 8]], values=(A, B), axis=1, interleave=True)
    same("concat", [[1, 2], [5, 6], [3, 4], [7, 8]], values=(A, B), axis=-2, interleave=True)


def test_stack() -> None:
    same("stack", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], values=(A, B), axis=0)
    same("stack", [[[1, 5], [2, 6]], [[3, 7], [4, 8]]], values=(A, B), axis=-1)


def test_split() -> None:
    parts = eval_op("split", x=f32([1, 2, 3, 4]), axis=0, num_splits=2)
    assert [p.tolist() for p in parts] == [[1, 2], [3, 4]]
    parts = eval_op("split", x=f32([1, 2, 3, 4]), axis=-1, split_sizes=[1, 3])
    assert [p.tolist() for p in parts] == [[1], [2, 3, 4]]


def test_tile_and_reverse() -> None:
    same("tile", [[1, 1], [2, 2], [1, 1], [2, 2]], x=f32([[1], [2]]), reps=[2, 2])
    same("reverse", [[4, 3], [2, 1]], x=A)
    same("reverse", [[2, 1], [4, 3]], x=A, axes=[-1])


@given(arrays(), st.data())
def test_cut_and_joined_again(x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    first = data.draw(st.integers(0, x.shape[axis]))
    parts = eval_op("split", x=x, axis=axis, split_sizes=[first, x.shape[axis] - first])
    same("concat", x, values=parts, axis=axis)


def test_sizes_that_do_not_add_up() -> None:
    with pytest.raises(Exception, match="add up"):
        eval_op("split", x=f32([1, 2, 3]), axis=0, split_sizes=[1, 1])


def test_types_stay() -> None:
    assert eval_op("concat", values=(np.int32([1]), np.int32([2])), axis=0).dtype == np.int32
