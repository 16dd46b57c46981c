"""Shapes changed, values left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, f32, same

X = f32([[1, 2, 3], [4, 5, 6]])


def test_identity_and_shape() -> None:
    same("identity", X, x=X)
    same("shape", [2, 3], x=X)
    assert eval_op("shape", x=X).dtype == np.int32


@pytest.mark.parametrize("shape", [[3, 2], [-1, 2], [3, -1], [6], [1, 2, 1, 3]])
def test_reshape(shape: list[int]) -> None:
    same("reshape", X.reshape(shape), x=X, shape=shape)


def test_a_zero_keeps_an_axis() -> None:
    same("reshape", X.reshape(2, 3, 1), x=X, shape=[0, -1, 1])


def test_transpose() -> None:
    same("transpose", [[1, 4], [2, 5], [3, 6]], x=X, perm=[1, 0])
    same("transpose", X.T, x=X, perm=[-1, 0])


def test_axes_of_length_one() -> None:
    same("expand_dims", X[:, None, :, None], x=X, axes=[1, 3])
    same("expand_dims", X[..., None], x=X, axes=[-1])
    same("squeeze", X, x=X[None, :, None], axes=[0, -2])
    same("squeeze", X, x=X[None, :, None])


@given(arrays(), st.data())
def test_transposed_and_back(x: Any, data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(x.ndim)))
    back = np.argsort(perm).tolist()
    same("transpose", x, x=eval_op("transpose", x=x, perm=perm), perm=back)


@pytest.mark.parametrize(
    ("x", "dtype", "expected"),
    [
        ([1.9, -1.9], "int32", [1, -1]),
        ([0, 0.5, -3], "bool", [False, True, True]),
        ([3, -3], "fp16", [3, -3]),
        ([3.5], "fp32", [3.5]),
    ],
)
def test_cast(x: list[float], dtype: str, expected: list[Any]) -> None:
    same("cast", expected, x=f32(x), dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_cast_to_integers(dtype: str) -> None:
    assert eval_op("cast", x=f32([7.9]), dtype=dtype).dtype == np.dtype(dtype)
