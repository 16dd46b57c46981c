"""Shared by the operations' tests: run one in float32, and compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_ane.mlprogram.executor import eval_op


def f32(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32)


def noise(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(op: str, expected: Any, *, opset: str = "iOS18", **parameters: Any) -> None:
    """The operation gives exactly these values and this shape."""
    result = np.asarray(eval_op(op, opset=opset, **parameters))
    np.testing.assert_array_equal(result, np.asarray(expected), strict=False)
    assert result.shape == np.shape(expected)


def case(op: str, expected: Any, **parameters: Any) -> tuple[str, Any, dict[str, Any]]:
    """A row of a table whose test is `same`."""
    return op, expected, parameters


def close(op: str, expected: Any, *, opset: str = "iOS18", **parameters: Any) -> None:
    """The operation gives these values to float32's accuracy, and this shape."""
    if isinstance(expected, torch.Tensor):
        expected = expected.detach().numpy()
    result = np.asarray(eval_op(op, opset=opset, **parameters))
    np.testing.assert_allclose(result, np.asarray(expected), rtol=2e-5, atol=2e-6)
    assert result.shape == np.shape(expected)


def arrays(limit: float = 8, *, least: int = 0) -> st.SearchStrategy[Any]:
    """Float32 arrays of any small shape."""
    return hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=max(least, 1), max_side=4),
        elements=st.floats(-limit, limit, width=32),
    )
