"""Functions of two broadcast tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

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
