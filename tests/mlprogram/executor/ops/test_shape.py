"""Shapes changed, values left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, f32, same

X = f32([[1, 2, 3], [4, 5, 6]])


def test_identity_and_shape() -> None:
    same("identity", X, x=X)
    same("shape", [2, 3], x=X)
    assert eval_op("shape", x=X).dtype == np.int32


@pytest.mark.parametrize("shape", [[3, 2], [-1, 2], [3, -1], [6], [1, 2, 1, 3]])
def test_reshape(shape: list[int]) -> None:
    same("reshape", X.reshape(shape), x=X, shape=shape)


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
def test_a_zero_keeps_an_axis(opset: str) -> None:
    same("reshape", X, x=X, shape=[0, -1], opset=opset)
    same("reshape", X, x=X, shape=[-1, 0], opset=opset)


def test_a_zero_before_ios17_needs_the_rank() -> None:
    with pytest.raises(Exception, match="must have the rank of x, 2"):
        eval_op("reshape", x=X, shape=[0, -1, 1], opset="iOS16")


def test_a_zero_counts_from_the_last_axis() -> None:
    x = np.zeros((2, 50), np.float32)
    same("reshape", x.reshape(1, 1, 2, 50), x=x, shape=[1, 0, -1, 0], opset="iOS17")
    same("reshape", x.reshape(2, 25, 2), x=x[..., None], shape=[0, -1, 2], opset="iOS17")
    same("reshape", x.reshape(1, 100), x=x.reshape(100), shape=[0, -1], opset="iOS17")


def test_scalars_and_empty_tensors() -> None:
    none = np.zeros((0, 3), np.float32)
    same("reshape", f32(5), x=f32([[5]]), shape=np.array([], np.int32))
    same("reshape", f32([[5]]), x=5.0, shape=[1, -1])
    same("reshape", none.reshape(3, 0), x=none, shape=[3, -1])
    same("reshape", none, x=none, shape=[0, 3])
    same("expand_dims", none[None], x=none, axes=[0])
    same("expand_dims", f32([[5]]), x=5.0, axes=[0, 1])
    same("squeeze", none, x=none[:, None], axes=[1])
    same("squeeze", f32(5), x=f32([[5]]))
    same("squeeze", f32(5), x=f32([5]), axes=[0])
    same("transpose", none.T, x=none, perm=[1, 0])
    same("transpose", f32(5), x=f32(5), perm=[])
    same("shape", [0, 3], x=none)
    same("shape", np.zeros(0), x=f32(5))
    same("cast", np.zeros((0, 3)), x=none, dtype="int32")
    same("cast", 5, x=5.7, dtype="int32")
    same("identity", none, x=none)


@pytest.mark.parametrize("shape", [[4], [-1, 4], [-1, -1], [0, 4]])
def test_shapes_that_do_not_fit(shape: list[int]) -> None:
    with pytest.raises(Exception, match="reshape fails"):
        eval_op("reshape", x=X, shape=shape)


def test_reshape_like() -> None:
    x, a, b = np.arange(180, dtype=np.float32), np.zeros((2, 3, 4)), np.zeros((1, 5, 6))
    same("reshape_like", x.reshape(2, 3, 5, 6), x=x, ref_tensors=(a, b), begins=(0, 1),
         ends=(2, 0), end_masks=(False, True))  # fmt: skip
    same("reshape_like", X.reshape(3, 2), x=X, ref_tensors=np.zeros((9, 3, 2, 7)), begins=-3,
         ends=-1, end_masks=False)  # fmt: skip
    with pytest.raises(Exception, match="reshape_like fails"):
        eval_op("reshape_like", x=X, ref_tensors=(a,), begins=(0,), ends=(1,), end_masks=(True,))


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((3,), -1, (1, 3)),
        ((3,), 1, (3, 1)),
        ((4, 3), -1, (4, 3)),
        ((2, 3, 2), -1, (6, 2)),
        ((5, 5, 2), 1, (5, 10)),
        ((2, 3), 0, (1, 6)),
        ((0, 3, 2), 1, (0, 6)),
    ],
)
def test_flatten2d(shape: Any, axis: int, expected: Any) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    same("flatten2d", x.reshape(expected), x=x, axis=axis)


def test_transpose() -> None:
    same("transpose", [[1, 4], [2, 5], [3, 6]], x=X, perm=[1, 0])
    same("transpose", X.T, x=X, perm=[-1, 0])


def test_axes_of_length_one() -> None:
    same("expand_dims", X[:, None, :, None], x=X, axes=[1, 3])
    same("expand_dims", X[..., None], x=X, axes=[-1])
    same("squeeze", X, x=X[None, :, None], axes=[0, -2])
    same("squeeze", X, x=X[None, :, None])


def test_longer_axes_are_not_squeezed() -> None:
    same("squeeze", X, x=X, axes=[0, 1])
    same("squeeze", X, x=X[None], axes=[0, 1])
    with pytest.raises(Exception, match="squeeze fails"):
        eval_op("squeeze", x=X, axes=[2])


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
        ([300, -1, -129, 1e9], "uint8", [255, 0, 0, 255]),
        ([300, -1.5, -129, -1e9], "int8", [127, -1, -128, -128]),
        ([70000, -1, 65535.5], "uint16", [65535, 0, 65535]),
        ([1e10, -1e10, np.inf, -np.inf, np.nan], "int32", [2**31 - 1, -(2**31)] * 2 + [0]),
        ([np.nan, np.inf, -0.0], "bool", [True, True, False]),
    ],
)
def test_cast(x: list[float], dtype: str, expected: list[Any]) -> None:
    same("cast", expected, x=f32(x), dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_cast_to_integers(dtype: str) -> None:
    assert eval_op("cast", x=f32([7.9]), dtype=dtype).dtype == np.dtype(dtype)


def test_cast_of_integers_and_booleans() -> None:
    same("cast", [44, 255], x=np.int32([300, -1]), dtype="uint8")
    same("cast", [-1, 2], x=np.uint16([65535, 2]), dtype="int16")
    same("cast", [1, 0], x=np.array([True, False]), dtype="fp16")
    same("cast", [True, False], x=np.int32([-2, 0]), dtype="bool")
    assert eval_op("cast", x=np.int32([1]), dtype="fp32").dtype == np.float32


def test_wider_floats_stay() -> None:
    assert eval_op("cast", x=np.array([0.1]), dtype="fp32").dtype == np.float64
    assert eval_op("cast", x=np.float16([0.1]), dtype="fp16").dtype == np.float32


def test_an_unknown_type() -> None:
    with pytest.raises(Exception, match="unknown dtype 'text'"):
        eval_op("cast", x=X, dtype="text")
