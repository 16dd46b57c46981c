"""Padding: the definition's examples, and numpy's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, f32, same

X = f32([[1, 2, 3], [4, 5, 6]])


def test_constant() -> None:
    same("pad", [[0, 1, 2, 3, 0, 0], [0, 4, 5, 6, 0, 0]], x=X, pad=[1, 2])
    same("pad", [[9, 9, 9], [1, 2, 3], [4, 5, 6]], x=X, pad=[1, 0, 0, 0], constant_val=9.0)


def test_reflect_leaves_the_edge_out() -> None:
    expected = [
        [6, 5, 4, 5, 6, 5, 4],
        [3, 2, 1, 2, 3, 2, 1],
        [6, 5, 4, 5, 6, 5, 4],
        [3, 2, 1, 2, 3, 2, 1],
    ]
    same("pad", expected, x=X, pad=np.array([1, 1, 2, 2], np.int32), mode="reflect")


def test_replicate_repeats_the_edge() -> None:
    expected = [
        [1, 1, 1, 2, 3, 3, 3],
        [1, 1, 1, 2, 3, 3, 3],
        [4, 4, 4, 5, 6, 6, 6],
        [4, 4, 4, 5, 6, 6, 6],
    ]
    same("pad", expected, x=X, pad=[1, 1, 2, 2], mode="replicate")


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.float64])
def test_the_type_stays(dtype: Any) -> None:
    found = eval_op("pad", x=X.astype(dtype), pad=[1, 1])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, 1:-1], X.astype(dtype))


@settings(max_examples=30)
@given(x=arrays(), data=st.data())
def test_fewer_pairs_are_for_the_last_axes(x: Any, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, 3)] * 2), max_size=x.ndim))
    everywhere = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    same("pad", np.pad(x, everywhere), x=x, pad=np.array(pairs, np.int32).reshape(-1))


def test_empty_and_rank_zero() -> None:
    same("pad", f32([7, 7, 7]), x=f32([]), pad=[1, 2], constant_val=7.0)
    same("pad", f32(3), x=f32(3), pad=np.array([], np.int32))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pad": [1, 2, 3]}, "not a list of pairs for at most 2 axes"),
        ({"pad": [0] * 6}, "not a list of pairs for at most 2 axes"),
        ({"pad": [-1, 0]}, "negative number"),
        ({"pad": [3, 0], "mode": "reflect"}, r"cannot add \(3, 0\) to axis 1 of 3 elements"),
        ({"pad": [0, 4], "mode": "replicate"}, r"cannot add \(0, 4\) to axis 1 of 3 elements"),
        ({"pad": [1, 1], "mode": "wrap"}, "unknown mode 'wrap'"),
    ],
)
def test_what_cannot_be_padded(parameters: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        eval_op("pad", x=X, **parameters)
