"""How the ANE reads and rounds fp16 numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor.ane.fp16 import decode, r16
from tests.mlprogram.executor.ane import plain

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_every_pattern_is_decoded() -> None:
    with np.errstate(all="ignore"):
        decoded = decode(EVERY.view(np.float16))
    assert [Fraction(float(x)) for x in decoded] == [plain.value(p) for p in range(1 << 16)]


def test_exponent_31_is_an_exponent() -> None:
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
