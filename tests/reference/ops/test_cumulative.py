"""Sums that run along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, close, f32, same

X = f32([[1, 2, 3], [4, 5, 6]])


def test_cumsum() -> None:
    same("cumsum", [[1, 2, 3], [5, 7, 9]], x=X)
    same("cumsum", [[5, 7, 9], [4, 5, 6]], x=X, axis=0, reverse=True)
    same("cumsum", [[1, 3, 6], [4, 9, 15]], x=X, axis=-1)


def test_without_the_element_itself() -> None:
    same("cumsum", [[0, 1, 3], [0, 4, 9]], x=X, axis=1, exclusive=True)
    same("cumsum", [[5, 3, 0], [11, 6, 0]], x=X, axis=1, exclusive=True, reverse=True)
    same("cumsum", [0], x=f32([np.inf]), exclusive=True)
    same("cumsum", [0, 1, np.inf], x=f32([1, np.inf, np.nan]), exclusive=True)


@settings(max_examples=40)
@given(arrays(), st.data())
def test_as_torch_has_it(x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    expected = torch.from_numpy(x).double().cumsum(axis)
    close("cumsum", expected.float(), x=x, axis=axis)
    left_out = expected - torch.from_numpy(x)
    result = eval_op("cumsum", x=x, axis=axis, exclusive=True)
    np.testing.assert_allclose(result, left_out, atol=1e-5)


@pytest.mark.parametrize("exclusive", [True, False])
def test_nothing_to_sum(exclusive: bool) -> None:
    none = np.zeros((0, 3), np.float32)
    same("cumsum", none, x=none, axis=0, exclusive=exclusive, reverse=True)
    same("cumsum", none, x=none, axis=1, exclusive=exclusive)


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_types_stay(dtype: Any) -> None:
    assert eval_op("cumsum", x=X.astype(dtype), exclusive=True).dtype == dtype


def test_an_axis_out_of_bounds() -> None:
    with pytest.raises(Exception, match="out of bounds"):
        eval_op("cumsum", x=X, axis=2)
