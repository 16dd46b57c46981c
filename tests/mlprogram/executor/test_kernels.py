"""Compiled arithmetic gives what numpy's gives."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import _kernels as kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no fp16 in this processor")


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("width", [1, 15, 576])
def test_products(count: int, width: int) -> None:
    rng = np.random.default_rng(width)
    weight = rng.standard_normal((9, width)).astype(np.float16)
    vectors = rng.standard_normal((count, width)).astype(np.float32)
    found = np.empty((count, 9), np.float32)
    kernels.multiply(weight.view(np.uint16), vectors, found)
    expected = vectors.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_stays_so(bad: float) -> None:
    weight, vectors = np.ones((3, 64), np.float16), np.ones((1, 64), np.float32)
    weight[1, 40] = bad
    found = np.empty((1, 3), np.float32)
    kernels.multiply(weight.view(np.uint16), vectors, found)
    np.testing.assert_array_equal(found, np.float32([[64, bad, 64]]))
