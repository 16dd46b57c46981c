"""Compiled arithmetic of palettes, over groups of fp16 weights given as their bit patterns.

An fp16 weight has one of 65,536 patterns, so a group is counted once and all else works on the
patterns that occur. A palette's cells are intervals of values; so a table from pattern to index,
filled cell by cell, palettizes a group in one pass.

In one dimension the best clusters are intervals of the sorted values (Fisher, JASA 53, 1958), and
the cost of an interval satisfies the quadrangle inequality. So the least sum of squares for k
clusters is a k-link shortest path, found with a penalty on every link: each penalty takes one pass
(Hirschberg and Larmore, SIAM J. Comput. 16, 1987), and where no penalty yields exactly k links, two
paths of the same penalized cost are joined into one that has k (Aggarwal, Schieber and Tokuyama,
Discrete Comput. Geom. 12, 1994). The result is the global optimum.

All of it is in one file: numba's cache looks only at the file that a compiled function is in, and
would keep what another file's change has made stale.
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
Places = npt.NDArray[np.int32]

INFINITE = 0x7C00
"""The pattern of fp16's infinity; those above it, the sign apart, are NaN."""
_NEGATIVE = 0x8000
_PATTERNS = 1 << 16
_STEPS = np.ldexp(1.0, np.maximum(np.arange(32), 1) - 25)
"""What the last bit of a fraction is worth, by exponent."""
_GUESSES = 12
"""Penalties tried by their law of growth before chords, which cannot fail, take over."""


def compiled(function: F) -> F:
    """Compile at the first call; kept on disk for later processes."""
    decorate: Any = numba.njit(nogil=True, cache=True, error_model="numpy")
    return cast(F, decorate(function))


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
    size = (fraction + (1024 if exponent else 0)) * _STEPS[exponent]
    return -size if key < 0 else size


@compiled
def largest(group: Patterns) -> int:
    """The largest pattern, signs apart: `INFINITE` or more where a weight is no number."""
    most = np.uint16(0)
    for pattern in group:
        most = max(most, pattern & np.uint16(0x7FFF))
    return int(most)


@compiled
def count(group: Patterns, most: int, counts: Places, keys: Places, tally: Places) -> int:
    """Distinct values, ascending, as signed patterns with their counts; returns how many.

    Both zeros are one value. `counts [65536]` is zero before and after.
    """
    for pattern in group:
        counts[pattern] += 1
    counts[0] += counts[_NEGATIVE]
    counts[_NEGATIVE] = 0
    n = 0
    for key in range(-most, most + 1):
        pattern = key if key >= 0 else _NEGATIVE - key
        if counts[pattern]:
            keys[n], tally[n] = key, counts[pattern]
            counts[pattern] = 0
            n += 1
    return n


@compiled
def worth(s: Floats, w: Floats, i: int, j: int) -> float:
    """Cost of a cluster of the values i to j, less the sum of their squares."""
    total: float = s[j] - s[i]
    weight: float = w[j] - w[i]
    return -total * total / weight


@compiled
def sooner(s: Floats, w: Floats, cost: Floats, i: int, j: int, at: int) -> bool:
    """Whether `at` is reached cheaper from j than from i: both links' worth, without divisions."""
    w_i, w_j = w[at] - w[i], w[at] - w[j]
    s_i, s_j = s[at] - s[i], s[at] - s[j]
    cheaper: bool = (cost[j] - cost[i]) * w_i * w_j < s_j * s_j * w_i - s_i * s_i * w_j
    return cheaper


@compiled
def chain(
    s: Floats, w: Floats, n: int, penalty: float,
    cost: Floats, before: Places, queue: Places, since: Places,
) -> int:  # fmt: skip
    """The cheapest path from 0 to n if every link costs `penalty` extra; returns its links.

    `before[j]` becomes the place from which j is reached. `queue` holds the places from which
    later ones are best reached, the t-th from `since[t]` on: of two places, once the later one is
    better, it stays so.
    """
    cost[0] = 0.0
    head = tail = 0
    queue[0], since[0] = 0, 1
    for j in range(1, n + 1):
        while head < tail and since[head + 1] <= j:
            head += 1
        i = queue[head]
        before[j] = i
        cost[j] = cost[i] + worth(s, w, i, j) + penalty
        low = j + 1
        while tail >= head:
            i, low = queue[tail], max(since[tail], j + 1)
            if low > n or not sooner(s, w, cost, i, j, low):
                break
            tail -= 1
        if tail < head:
            tail = head
            queue[tail], since[tail] = j, j + 1
            continue
        i, high, step = queue[tail], low + 1, 1
        while high <= n and not sooner(s, w, cost, i, j, high):
            low, high, step = high, high + step, 2 * step
        high = min(high, n + 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if sooner(s, w, cost, i, j, middle):
                high = middle
            else:
                low = middle
        if high <= n:
            tail += 1
            queue[tail], since[tail] = j, high
    links, j = 0, n
    while j:
        j = before[j]
        links += 1
    return links


@compiled
def trace(before: Places, n: int, links: int, path: Places) -> None:
    """The places of a path, 0 and n included."""
    for link in range(links, -1, -1):
        path[link] = n
        n = before[n]


@compiled
def length(s: Floats, w: Floats, path: Places, links: int) -> float:
    """Cost of a path without penalties."""
    total = 0.0
    for link in range(links):
        total += worth(s, w, path[link], path[link + 1])
    return total


@compiled
def join(few: Places, fewer: int, many: Places, more: int, k: int, path: Places) -> None:
    """A path of k links: the head of one path, then the tail of the other, which it surrounds."""
    shift, x = more - k, 0
    while few[x + 1] < many[x + 1 + shift]:
        x += 1
    for i in range(k + 1):
        path[i] = few[i] if i <= x else many[i + shift]


@compiled
def divide(s: Floats, w: Floats, n: int, k: int, path: Places, room: Places, guess: float) -> float:
    """The cheapest path of exactly k links, k < n; returns the penalty that found it."""
    before, queue, since, few, many = room[0], room[1], room[2], room[3], room[4]
    cost = np.empty(n + 1)
    few[0], few[1], fewer = 0, n, 1
    for i in range(n + 1):
        many[i] = i
    more = n
    short, long = length(s, w, few, 1), length(s, w, many, n)
    low, high = 0.0, math.inf
    if k == 1:
        path[0], path[1] = 0, n
        return guess
    tries = 0
    while True:
        chord = tries >= _GUESSES or not low < guess < high
        penalty = (short - long) / (more - fewer) if chord else guess
        links = chain(s, w, n, penalty, cost, before, queue, since)
        if links == k:
            trace(before, n, links, path)
            return penalty
        if chord and (links <= fewer or links >= more):
            join(few, fewer, many, more, k, path)
            return penalty
        if fewer < links < k:
            trace(before, n, links, few)
            fewer, high, short = links, penalty, length(s, w, few, links)
        elif k < links < more:
            trace(before, n, links, many)
            more, low, long = links, penalty, length(s, w, many, links)
        # The cost of the best k clusters falls with 1 / k^2, so its slope with 1 / k^3.
        guess = penalty * (links / k) ** 3
        tries += 1


@compiled
def settle(
    s: Floats, w: Floats, keys: Places, n: int, k: int, path: Places, moved: Places, lut: Floats
) -> None:
    """Round the clusters' means to fp16 and give each value to the nearest, until none gains.

    `path` becomes the clusters that `lut` stands for; some may be empty.
    """
    best, centres = math.inf, np.zeros(k)
    for c in range(k + 1):
        moved[c] = path[c]
    while True:
        for c in range(k):
            i, j = moved[c], moved[c + 1]
            if i < j:
                centres[c] = half((s[j] - s[i]) / (w[j] - w[i]))
        for c in range(1, k):
            middle, low, high = (centres[c - 1] + centres[c]) / 2, moved[c - 1], n
            while low < high:
                i = (low + high) >> 1
                if number(keys[i]) <= middle:
                    low = i + 1
                else:
                    high = i
            moved[c] = low
        total = 0.0
        for c in range(k):
            i, j = moved[c], moved[c + 1]
            total += centres[c] * (centres[c] * (w[j] - w[i]) - 2 * (s[j] - s[i]))
        if total >= best:
            return
        best = total
        path[k] = n
        for c in range(k):
            path[c], lut[c] = moved[c], centres[c]


@compiled
def distinct(weights: Patterns, most: int) -> int:
    """The largest number of distinct values of any group, or -1 where a weight is no number.

    Counting ends at the first group that has more than `most`.
    """
    counts = np.zeros(_PATTERNS, np.int32)
    keys, tally = np.empty(_PATTERNS, np.int32), np.empty(_PATTERNS, np.int32)
    found = 0
    for group in weights:
        top = largest(group)
        if top >= INFINITE:
            return -1
        found = max(found, count(group, top, counts, keys, tally))
        if found > most:
            break
    return found


@compiled
def kmeans(weights: Patterns, luts: Floats, indices: Indices) -> bool:
    """The best palettes of `k` values for groups, each weight's index in its own.

    Args:
        weights: fp16 patterns, uint16 `[groups, size]`.
        luts: float64 `[groups, k]`, zeros, to be filled with fp16 values, ascending; zeros follow
            where a group has fewer than k values.
        indices: uint8 `[groups, size]`, to be filled.

    Returns:
        Whether all weights are numbers; if not, nothing is promised of the results.
    """
    k = luts.shape[1]
    counts, room = np.zeros(_PATTERNS, np.int32), np.empty((7, _PATTERNS), np.int32)
    keys, tally, path = room[5], room[6], np.empty(k + 1, np.int32)
    s, w = np.zeros(_PATTERNS), np.zeros(_PATTERNS)
    table = np.zeros(_PATTERNS, np.uint8)
    share = 5.4 / k**3  # For Gaussian weights (Panter and Dite, Proc. IRE 39, 1951).
    for g in range(len(weights)):
        top = largest(weights[g])
        if top >= INFINITE:
            return False
        n = count(weights[g], top, counts, keys, tally)
        square = 0.0
        for i in range(n):
            value = number(keys[i])
            s[i + 1] = s[i] + tally[i] * value
            w[i + 1] = w[i] + tally[i]
            square += tally[i] * value * value
        if n <= k:
            cells = n
            for i in range(n):
                luts[g, i], path[i] = number(keys[i]), i
            path[n] = n
        else:
            cells, spread = k, square + worth(s, w, 0, n)
            share = divide(s, w, n, k, path, room[:5], share * spread) / spread
            settle(s, w, keys, n, k, path, room[0], luts[g])
        for c in range(cells):
            for i in range(path[c], path[c + 1]):
                key = keys[i]
                table[key if key >= 0 else _NEGATIVE - key] = c
        table[_NEGATIVE] = table[0]
        look_up(weights[g], table, indices[g])
    return True


@compiled
def look_up(group: Patterns, table: Indices, indices: Indices) -> None:
    """The index of every weight."""
    for i in range(len(group)):
        indices[i] = table[group[i]]


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
    table[_NEGATIVE + max(1 - last, 0) : _NEGATIVE + max(1 - first, 0)] = index


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
    table = np.zeros(_PATTERNS, np.uint8)
    for g in range(len(weights)):
        if largest(weights[g]) >= INFINITE:
            return False
        first, last = _PATTERNS, -_PATTERNS
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


@compiled
def pack(indices: Indices, nbits: int, packed: Indices) -> None:
    """Indices as a stream of bits, lowest first; `packed` has one byte for every 8 bits begun."""
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
