"""The accumulator's rules in Python's integers, one product after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def product(weight: int, x: int) -> int:
    """Of two patterns, in LSB; 0 where it is dropped."""
    exponent = parts(weight)[2] + parts(x)[2]
    return 0 if exponent <= -17 else half_away(value(weight) * value(x) / LSB)


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


def total(weights: Sequence[int], xs: Sequence[int], bias: int) -> tuple[int, bool]:
    """Output as a pattern, and whether it depends on the order of summation."""
    start = half_away(value(bias) / LSB)
    terms = [product(w, x) for w, x in zip(weights, xs, strict=True)]
    accumulator, overflow = start, None
    for term in [0, *terms]:
        accumulator += term
        if overflow is None and abs(accumulator) >= LIMIT:
            overflow = 0x7C00 if accumulator > 0 else 0xFC00
    result = r16(accumulator * LSB) if overflow is None else overflow
    return result, depends_on_order(start, terms)


def depends_on_order(start: int, terms: Iterable[int]) -> bool:
    """Positive terms first, or negative ones first: the extremes of all orders."""
    terms = list(terms)
    outcomes = set()
    for ordered in (sorted(terms), sorted(terms, reverse=True)):
        accumulator, outcome = start, 0
        for term in [0, *ordered]:
            accumulator += term
            if outcome == 0 and abs(accumulator) >= LIMIT:
                outcome = 1 if accumulator > 0 else -1
        outcomes.add(outcome)
    return len(outcomes) > 1
