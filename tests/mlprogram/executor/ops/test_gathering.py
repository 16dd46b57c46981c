"""Values picked by index, and put there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, case, close, f32, noise, same

X = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def picks(*shape: int, below: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-below, below, shape).astype(np.int32)


def test_gathered_in_batches() -> None:
    indices = np.array([[0, 0], [2, 1], [1, 1]])
    same("gather", [[1, 1], [6, 5], [8, 8]], x=X, indices=indices, axis=1, batch_dims=1)
    same("gather", [1, 6, 8], x=X, indices=indices[:, 0], axis=-1, batch_dims=1)
    x, where = noise(2, 3, 4, 5), picks(2, 3, 2, below=4)
    expected = [[x[i, j][where[i, j]] for j in range(3)] for i in range(2)]
    same("gather", expected, x=x, indices=where, axis=2, batch_dims=2)
    x, where = noise(2, 3, 4, 5), picks(2, 6, 7, below=4)
    expected = [np.take(x[i], where[i], axis=1) for i in range(2)]
    same("gather", expected, x=x, indices=where, axis=2, batch_dims=1)
    x, where = noise(2, 3, 4, 5), picks(2, 6, 2, below=3)
    expected = [[x[i][tuple(where[i, j])] for j in range(6)] for i in range(2)]
    same("gather_nd", expected, x=x, indices=where, batch_dims=1)
    where = picks(2, 3, 1, below=4)
    expected = [[x[i, j, where[i, j, 0]] for j in range(3)] for i in range(2)]
    same("gather_nd", expected, x=x, indices=where, batch_dims=2)


@settings(max_examples=30)
@given(arrays(), st.data())
def test_gather_along_axis_as_torch_has_it(x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    shape = list(x.shape)
    shape[axis] = data.draw(st.integers(1, 5))
    where = picks(*shape, below=x.shape[axis])
    expected = torch.from_numpy(x).gather(axis, torch.from_numpy(where % x.shape[axis]).long())
    same("gather_along_axis", expected.numpy(), x=x, indices=where, axis=axis)


DATA = f32([[1, 2, 3], [4, 5, 6]])
STEPS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": max,
    "min": min,
    "update": lambda a, b: b,
}


def test_scattered() -> None:
    updates = f32([[5, 6, 7], [8, 9, 10]])
    same("scatter", [[9, 11, 13], [9, 11, 13]], data=DATA, indices=np.array([1, 0]),
         updates=updates)  # fmt: skip
    same("scatter", [[8, 9, 10], [5, 6, 7]], data=DATA, indices=np.array([1, 0]),
         updates=updates, mode="update")  # fmt: skip
    same("scatter", [[1, 2, 8], [4, 5, 15]], data=DATA, indices=np.array([-1]),
         updates=f32([[5], [9]]), axis=-1)  # fmt: skip
    same("scatter", [[1, 7, 3], [4, 5, 11]], data=DATA, indices=np.array([[1, 2]]), axis=1,
         updates=f32([[[5, 0]], [[0, 5]]]))  # fmt: skip
    indices = np.array([[1, 0, 1], [1, 1, 0]])
    same("scatter_along_axis", [[1, 6, 10], [8, 9, 7]], data=DATA, indices=indices,
         updates=f32([[5, 6, 7], [8, 9, 10]]), axis=0, mode="update")  # fmt: skip
    indices = np.array([[1, 0], [0, 2]])
    same("scatter_nd", [[1, 2, 13], [9, 5, 6]], data=DATA, indices=indices, updates=f32([5, 10]))
    same("scatter_nd", [[1, 2, 3], [5, 6, 7]], data=DATA, indices=np.array([[-1]]),
         updates=f32([[1, 1, 1]]))  # fmt: skip
    same("scatter_nd", DATA + 1, data=DATA, indices=np.empty(0, np.int32),
         updates=np.ones_like(DATA))  # fmt: skip
    data, indices = f32([1, 2]), np.array([0, 1])
    same("scatter", [np.nan, np.inf], data=data, indices=indices, updates=f32([np.nan, np.inf]),
         mode="max")  # fmt: skip
    same("scatter", [np.inf, -np.inf], data=data, indices=indices, updates=f32([0, -0.0]),
         mode="div")  # fmt: skip


@pytest.mark.parametrize("mode", STEPS)
def test_repeated_places_in_order(mode: str) -> None:
    data, updates = noise(4, 3), noise(5, 3, seed=1)
    indices = np.array([2, 0, 2, -2, 2])
    expected = data.copy()
    for at, row in zip(indices, updates, strict=True):
        expected[at] = [STEPS[mode](a, b) for a, b in zip(expected[at], row, strict=True)]
    close("scatter", expected, data=data, indices=indices, updates=updates, mode=mode)
    close("scatter", expected.T, data=data.T, indices=indices, updates=updates.T, axis=1, mode=mode)
    close("scatter_nd", expected, data=data, indices=indices[:, None], updates=updates, mode=mode)
    close("scatter_along_axis", expected, data=data, updates=updates, mode=mode,
          indices=np.repeat(indices[:, None], 3, axis=1))  # fmt: skip


def test_data_and_types_stay() -> None:
    data = DATA.copy()
    for mode in STEPS:
        eval_op("scatter", data=data, indices=np.array([0]), updates=f32([[7, 7, 7]]), mode=mode)
    np.testing.assert_array_equal(data, DATA)
    data, updates = np.array([7, -7, 9], np.int32), np.array([2, 2, 3])
    indices = np.array([0, 1, 0])
    result = eval_op("scatter", data=data, indices=indices, updates=updates, mode="div")
    assert result.tolist() == [1, -3, 9]
    assert result.dtype == np.int32


LITERALS = [
    case("gather", [[7, 8, 9], [1, 2, 3]], x=X, indices=np.array([2, 0]), axis=0),
    case("gather", [[3, 1], [6, 4], [9, 7]], x=X, indices=np.array([-1, 0]), axis=1),
    case("gather", [2, 5, 8], x=X, indices=np.int32(1), axis=-1),
    case("gather", [4, 5, 6], x=X, indices=1),
    case("gather", X[[[0, 1], [2, 0]]], x=X, indices=np.array([[0, 1], [2, 0]])),
    case("gather", f32(2), x=f32([1, 2]), indices=1),
    case("gather", np.empty((0, 3)), x=X, indices=np.empty(0, np.int32)),
    case("gather", np.empty((0, 2)), x=np.empty((0, 3)), indices=np.empty((0, 2), np.int32),
         axis=1, batch_dims=1),
    case("gather_nd", np.empty((0, 3)), x=X, indices=np.empty((0, 1), np.int32)),
    case("gather_nd", [4, 3], x=X, indices=np.array([[1, 0], [0, 2]])),
    case("gather_nd", [[4, 5, 6], [7, 8, 9]], x=X, indices=np.array([[1], [-1]])),
    case("gather_nd", f32(9), x=X, indices=np.array([-1, 2])),
    case("gather_nd", [X, X], x=X, indices=np.empty((2, 0), np.int32)),
    case("non_zero", [[0, 1], [1, 0]], x=f32([[0, 3], [-1, 0]])),
    case("non_zero", [[0], [2]], x=np.array([True, False, True])),
    case("non_zero", [[0], [1]], x=f32([np.nan, np.inf, -0.0])),
    case("non_zero", np.empty((0, 2)), x=np.zeros((2, 3))),
    case("non_zero", np.empty((0, 2)), x=np.zeros((0, 3))),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)
