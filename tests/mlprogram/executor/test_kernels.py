"""Compiled arithmetic gives what numpy's gives."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import _kernels as kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no fp16 in this processor")


@pytest.mark.parametrize("width", [1, 15, 576])
def test_products(width: int) -> None:
    rng = np.random.default_rng(width)
    weight = rng.standard_normal((9, width)).astype(np.float16)
    vector = rng.standard_normal(width).astype(np.float32)
    found = np.empty(9, np.float32)
    kernels.multiply(weight.view(np.uint16), vector, found)
    expected = weight.astype(np.float64) @ vector.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_stays_so(bad: float) -> None:
    weight, vector = np.ones((3, 64), np.float16), np.ones(64, np.float32)
    weight[1, 40] = bad
    found = np.empty(3, np.float32)
    kernels.multiply(weight.view(np.uint16), vector, found)
    np.testing.assert_array_equal(found, np.float32([64, bad, 64]))
