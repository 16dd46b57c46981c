"""Functions of two broadcast tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import f32, noise, same

X, Y = f32([[1, -2], [3, 4]]), f32([[2], [-3]])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", [[3, 0], [0, 1]]),
        ("sub", [[-1, -4], [6, 7]]),
        ("mul", [[2, -4], [-9, -12]]),
        ("real_div", [[0.5, -1], [-1, f32(4) / f32(-3)]]),
        ("floor_div", [[0, -1], [-1, -2]]),
        ("mod", [[1, 0], [0, -2]]),
        ("maximum", [[2, 2], [3, 4]]),
        ("minimum", [[1, -2], [-3, -3]]),
        ("equal", [[False, False], [False, False]]),
        ("not_equal", [[True, True], [True, True]]),
        ("greater", [[False, False], [True, True]]),
        ("greater_equal", [[False, False], [True, True]]),
        ("less", [[True, True], [False, False]]),
        ("less_equal", [[True, True], [False, False]]),
    ],
)
def test_literal_and_broadcast(op: str, expected: Any) -> None:
    same(op, expected, x=X, y=Y)


def test_pow() -> None:
    same("pow", [4, 0.125], x=f32([2, 2]), y=f32([2, -3]))


@pytest.mark.parametrize(
    ("op", "expected"),
    [("logical_and", [1, 0, 0, 0]), ("logical_or", [1, 1, 1, 0]), ("logical_xor", [0, 1, 1, 0])],
)
def test_logic(op: str, expected: list[int]) -> None:
    x, y = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    same(op, np.array(expected, bool), x=x, y=y)


def test_select() -> None:
    same("select", [[1, 9], [9, 4]], cond=np.array([[1, 0], [0, 1]], bool), a=X, b=f32(9))


@pytest.mark.parametrize("op", ["maximum", "minimum", "add", "mul"])
def test_nan_is_never_lost(op: str) -> None:
    same(op, [np.nan, np.nan], x=f32([np.nan, 1]), y=f32([1, np.nan]))


def test_scalars_that_a_program_holds() -> None:
    same("mul", [[-1, 2], [-3, -4]], x=X, y=-1.0)
    same("sub", [[0, 3], [-2, -3]], x=1.0, y=X)


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3))
def test_shapes_broadcast(shapes: Any) -> None:
    x, y = (noise(*shape) for shape in shapes.input_shapes)
    same("add", x + y, x=x, y=y)


NUMBERS, DIVISORS = np.array([7, -7, 7, -7, 0], np.int32), np.array([2, 2, -2, 0, 0], np.int32)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("floor_div", [3, -4, -4, 0, 0]),
        ("mod", [1, 1, -1, 0, 0]),
        ("real_div", [3, -3, -3, 0, 0]),
    ],
)
def test_integers_divide(op: str, expected: list[int]) -> None:
    """By zero, they give zero: never an error, nor what a cast makes of infinity."""
    same(op, expected, x=NUMBERS, y=DIVISORS)


def test_floats_divide_by_zero() -> None:
    x, zero = f32([1, -1, 0]), f32(0)
    same("real_div", [np.inf, -np.inf, np.nan], x=x, y=zero)
    same("floor_div", [np.inf, -np.inf, np.nan], x=x, y=zero)
    same("mod", [np.nan] * 3, x=x, y=zero)


def test_quotients_of_large_integers_are_exact() -> None:
    top = 2**31 - 1
    x, y = np.array([top, -top, top - 1], np.int32), np.array([1, 2, top], np.int32)
    same("real_div", [top, -(2**30 - 1), 0], x=x, y=y)


def test_powers_of_integers() -> None:
    x, y = np.array([2, -3, 2, 1, -1, -1, 0, 0], np.int32), np.array([3, 3, -1, -5, -2, -3, -1, 0])
    same("pow", [8, -27, 0, 1, 1, -1, 0, 1], x=x, y=y.astype(np.int32))
    same("pow", [4, 9], x=np.array([2, -3], np.int32), y=2)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "floor_div", "mod", "maximum", "minimum"])
def test_types_stay_and_rank_zero_too(op: str) -> None:
    for dtype in (np.int32, np.float32, np.float64):
        found = eval_op(op, x=np.array(7, dtype), y=np.array(2, dtype))
        assert np.shape(found) == ()
        assert np.asarray(found).dtype == dtype
