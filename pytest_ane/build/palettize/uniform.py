"""Palettes of even steps, for groups of fp16 weights: bit for bit coremltools' own."""

from __future__ import annotations

import numpy as np

from pytest_ane.build.palettize.patterns import (
    INFINITE,
    NEGATIVE,
    PATTERNS,
    Floats,
    Indices,
    Patterns,
    compiled,
    half,
    largest,
    look_up,
    number,
)


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
    """The least and the largest value of groups, and the nearest of the even steps between.

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
