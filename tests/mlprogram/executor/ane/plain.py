"""fp16 as the ANE reads and rounds it, in Python's integers."""

from __future__ import annotations

from fractions import Fraction

LIMIT = 2**31
LSB = Fraction(1, 2**16)


def parts(pattern: int) -> tuple[int, int, int]:
    """Sign, mantissa and exponent: s m 2^(e - 10); exponent 31 is one like any other."""
    field, fraction = pattern >> 10 & 31, pattern & 0x3FF
    sign = -1 if pattern & 0x8000 else 1
    if field == 31 and fraction:
        fraction |= 0x200  # A signalling NaN arrives quietened.
    return sign, fraction + (1024 if field else 0), max(field, 1) - 15


def value(pattern: int) -> Fraction:
    """The number that the ANE takes a pattern for."""
    sign, mantissa, exponent = parts(pattern)
    return sign * mantissa * Fraction(2) ** (exponent - 10)


def half_away(x: Fraction) -> int:
    """The nearest integer, ties away from zero."""
    whole = int(abs(x) + Fraction(1, 2))
    return whole if x >= 0 else -whole


def r16(y: Fraction) -> int:
    """Pattern of the nearest fp16 number, ties away from zero."""
    sign = 0x8000 if y < 0 else 0
    for field in range(31):
        unit = Fraction(2) ** (max(field, 1) - 25)
        steps = half_away(abs(y) / unit)
        if steps < (2048 if field else 1024):
            steps -= 1024 if field else 0
            pattern = (field << 10) + max(steps, 0)
            return sign | pattern if pattern else 0
        if steps == (2048 if field else 1024) and field < 30:
            return sign | (field + 1) << 10
    return sign | 0x7C00
