"""Compiled arithmetic gives what numpy's gives."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import _kernels as kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="no fp16 in this processor")

PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def test_every_pattern_is_widened() -> None:
    found = np.empty(len(PATTERNS), np.float32)
    kernels.widen(PATTERNS, found)
    np.testing.assert_array_equal(found, PATTERNS.view(np.float16).astype(np.float32))


def test_rounding_is_numpys_bit_for_bit() -> None:
    """Every fp16 number, the ties between them, their neighbours, and random bits."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    near = [np.nextafter(ties, np.float32(end)) for end in (0, np.inf)]
    positive = np.concatenate([halves.astype(np.float32), ties, *near])
    values = np.concatenate([positive, -positive, random.view(np.float32)])
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
        found = kernels.rounded(values)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("width", [1, 15, 576])
def test_products(count: int, width: int) -> None:
    rng = np.random.default_rng(width)
    weight = rng.standard_normal((9, width)).astype(np.float16)
    vectors = rng.standard_normal((count, width)).astype(np.float32)
    found = np.empty((9, count), np.float32)
    kernels.multiply(weight.view(np.uint16), vectors, found)
    expected = weight.astype(np.float64) @ vectors.T.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_stays_so(count: int, bad: float) -> None:
    weight, vectors = np.ones((3, 64), np.float16), np.ones((count, 64), np.float32)
    weight[1, 40] = bad
    found = np.empty((3, count), np.float32)
    kernels.multiply(weight.view(np.uint16), vectors, found)
    assert found[0].tolist() == found[2].tolist() == [64] * count
    np.testing.assert_array_equal(found[1], np.full(count, bad, np.float32))
