"""fp16 as the ANE reads and writes it; element-wise arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor.ane._fp16 import add, decode, mul, r16, sub
from tests.mlprogram.executor.ane import plain

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_decoding() -> None:
    with np.errstate(all="ignore"):
        decoded = decode(EVERY.view(np.float16))
    assert [Fraction(float(x)) for x in decoded] == [plain.value(p) for p in range(1 << 16)]
    patterns = np.array([0x7C00, 0xFC00, 0x7E00, 0x7FFF], np.uint16)
    with np.errstate(all="ignore"):
        assert decode(patterns.view(np.float16)).tolist() == [65536, -65536, 98304, 131008]


def test_rounding() -> None:
    y = [2049.0, -2049.0, 2**-25, 2**-25.01, -0.0, 65519.9, 65520.0, -65520.0, 2.0**-14 - 2.0**-25]
    expected = [2050, -2050, 2**-24, 0, 0, 65504, np.inf, -np.inf, 2.0**-14]
    assert r16(np.array(y)).tolist() == expected
    assert not np.signbit(r16(np.array([-0.0, -(2.0**-26)]))).any()


@given(st.integers(-(2**31), 2**31), st.integers(-40, 0))
@settings(max_examples=300, deadline=None)
def test_rounding_is_that_of_fractions(mantissa: int, exponent: int) -> None:
    y = r16(np.array([np.ldexp(float(mantissa), exponent)]))
    expected = plain.r16(mantissa * Fraction(2) ** exponent)
    assert int(y.astype(np.float16).view(np.uint16)[0]) == expected


def half(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_operations() -> None:
    assert add(half(2048, -2048), half(1, -1)).tolist() == [2050, -2050]
    assert mul(half(2049 / 2048 * 1024), half(1 + 2**-10)).tolist() == [1025.5 + 0.5]
    infinity = half(np.inf)
    assert sub(infinity, infinity).tolist() == [0]
    assert mul(half(0), infinity).tolist() == [0]
    assert mul(half(0.5), infinity).tolist() == [32768]
    assert add(half(np.nan), half(1)).tolist() == [np.inf]
    assert not np.signbit(mul(half(-0.0, 2.0**-24), half(1, -(2.0**-2)))).any()
    assert add(half(2.0**-24), half(0)).tolist() == [2.0**-24]
    assert add(np.zeros((2, 1), np.float32), 1.0).shape == (2, 1)
