"""Compiled arithmetic on fp16 weights given as their bit patterns; palettes of even steps.

An fp16 weight has one of 65,536 patterns, so groups of weights are counted, and a table from
pattern to index palettizes a group in one pass. A `key` is a pattern's lower 15 bits, negative
where the number is; keys are in the order of the numbers.

numba keeps compiled code on disk (`__pycache__`, or where NUMBA_CACHE_DIR says) until the file
changes that a function is in. It does not look at functions called in other files: whoever changes
this one deletes the cache, or touches `kmeans.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])
Patterns = npt.NDArray[np.uint16]
Indices = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

INFINITE = 0x7C00
"""The pattern of fp16's infinity; those above it, the sign apart, are NaN."""
NEGATIVE = 0x8000
"""The sign bit."""
PATTERNS = 1 << 16
_STEPS = np.ldexp(1.0, np.maximum(np.arange(32), 1) - 25)
"""What the last bit of a fraction is worth, by exponent."""


def compiled(function: F) -> F:
    """Compile at the first call; kept on disk for later processes, where any folder takes it."""

    def decorated(cache: bool) -> Any:
        return numba.njit(nogil=True, cache=cache, error_model="numpy")(function)

    try:
        return cast(F, decorated(cache=True))
    # An installation that cannot be written, and no home folder: usual in containers.
    except RuntimeError:
        return cast(F, decorated(cache=False))


@compiled
def half(x: float) -> float:
    """The fp16 number nearest to `x`, ties to even, overflow aside."""
    _, exponent = math.frexp(x)
    step = math.ldexp(1.0, max(exponent - 1, -14) - 10)
    return float(np.rint(x / step)) * step


@compiled
def number(key: int) -> float:
    """The value of a finite pattern, negative where `key` is."""
    pattern = abs(key)
    exponent, fraction = pattern >> 10, pattern & 0x3FF
    size: float = (fraction + (1024 if exponent else 0)) * _STEPS[exponent]
    return -size if key < 0 else size


@compiled
def largest(group: Patterns) -> int:
    """The largest pattern, signs apart: `INFINITE` or more where a weight is no number."""
    most = np.uint16(0)
    for pattern in group:
        most = max(most, pattern & np.uint16(0x7FFF))
    return int(most)


@compiled
def look_up(group: Patterns, table: Indices, indices: Indices) -> None:
    """Fill uint8 `indices` with the table's entry for every pattern of `group`, both `[size]`."""
    for i in range(len(group)):
        indices[i] = table[group[i]]


@compiled
def pack(indices: Indices, nbits: int, packed: Indices) -> None:
    """Indices as a stream of bits, lowest first; `packed` has one byte for every 8 bits begun."""
    if nbits == 4:  # By far the most common, and this loop becomes vector instructions.
        for i in range(len(indices) // 2):
            packed[i] = indices[2 * i] | indices[2 * i + 1] << 4
        if len(indices) % 2:
            packed[-1] = indices[-1]
        return
    word, filled, at = 0, 0, 0
    for index in indices:
        word |= index << filled
        filled += nbits
        if filled >= 8:
            packed[at] = word & 0xFF
            word >>= 8
            filled -= 8
            at += 1
    if filled:
        packed[at] = word


@compiled
def nearest_step(key: int, low: float, span: float, steps: int) -> int:
    """Which of the evenly spaced values a weight becomes, every operation rounded to fp16.

    numpy computes on float16 in this way, and so does coremltools.
    """
    share = half(np.float32(number(key)) - np.float32(low))
    share = half(np.float32(share) / np.float32(span))
    return int(np.rint(half(np.float32(share) * np.float32(steps))))


@compiled
def fill(table: Indices, first: int, last: int, index: int) -> None:
    """Set the table for the patterns of the keys `first` up to `last`."""
    table[max(first, 0) : max(last, 0)] = index
    table[NEGATIVE + max(1 - last, 0) : NEGATIVE + max(1 - first, 0)] = index


@compiled
def uniform(weights: Patterns, steps: int, ends: Floats, indices: Indices) -> bool:
    """Palettes of even steps: groups' least and largest value, and the nearest step of each weight.

    Bit for bit coremltools' own.

    Args:
        weights: fp16 patterns, uint16 `[groups, size]`.
        steps: intervals between the values of a palette, 2^nbits - 1.
        ends: float64 `[groups, 2]`, to be filled with the least and the largest value.
        indices: uint8 `[groups, size]`, to be filled.

    Returns:
        Whether all weights are numbers and no group spans more than fp16 holds.
    """
    table = np.zeros(PATTERNS, np.uint8)
    for g in range(len(weights)):
        if largest(weights[g]) >= INFINITE:
            return False
        first, last = PATTERNS, -PATTERNS
        for pattern in weights[g]:
            sign = np.int32(pattern >> 15)
            key = (np.int32(pattern & 0x7FFF) ^ -sign) + sign
            first, last = min(first, key), max(last, key)
        low, high = number(first), number(last)
        ends[g, 0], ends[g, 1] = low, high
        span = half(high - low)
        if span > number(INFINITE - 1):
            return False
        start = first
        for index in range(steps if first < last else 0):
            # The index never falls as the value grows, so an index has an interval of keys.
            end, beyond = start, last + 1
            while end < beyond:
                middle = (end + beyond) >> 1
                if nearest_step(middle, low, span, steps) > index:
                    beyond = middle
                else:
                    end = middle + 1
            fill(table, start, end, index)
            start = end
        fill(table, start, last + 1, steps if first < last else 0)
        look_up(weights[g], table, indices[g])
    return True
