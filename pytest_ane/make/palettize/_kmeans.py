"""The best palettes there are, of groups of fp16 weights given as their bit patterns.

In one dimension the best clusters are intervals of the sorted values (Fisher, JASA 53, 1958), and
the cost of an interval satisfies the quadrangle inequality. So the least sum of squares for k
clusters is a shortest path of k links, found with a penalty on every link: each penalty takes one
pass (Hirschberg and Larmore, SIAM J. Comput. 16, 1987), and where no penalty yields exactly k
links, two paths of the same penalized cost are joined into one that has k (Aggarwal, Schieber and
Tokuyama, Discrete Comput. Geom. 12, 1994). The result is the global optimum; what rounding the
means to fp16 costs is then made as small as paths near it allow.

The n distinct values of a group have places 0 to n; a cluster is the link from place i to j > i.

An fp16 weight has one of 65,536 patterns, so groups of weights are counted, and a table from
pattern to index palettizes a group in one pass. A `key` is a pattern's lower 15 bits, negative
where the number is; keys are in the order of the numbers.

numba keeps compiled code on disk (`__pycache__`, or where NUMBA_CACHE_DIR says) until this file
changes.
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


_GUESSES = 12
"""Penalties tried by their law of growth before chords, which cannot fail, take over."""


@compiled
def count(group: Patterns, most: int, counts: Integers, keys: Integers, tally: Integers) -> int:
    """Distinct values, ascending, as signed patterns with their counts; returns how many.

    Both zeros are one value. `counts [65536]` is zero before and after.
    """
    for pattern in group:
        counts[pattern] += 1
    counts[0] += counts[NEGATIVE]
    counts[NEGATIVE] = 0
    n = 0
    for key in range(-most, most + 1):
        pattern = key if key >= 0 else NEGATIVE - key
        if counts[pattern]:
            keys[n], tally[n] = key, counts[pattern]
            counts[pattern] = 0
            n += 1
    return n


@compiled
def run_up(keys: Integers, tally: Integers, n: int, w: Floats, s: Floats, q: Floats) -> None:
    """Running counts, sums and sums of squares of n distinct values.

    They run outwards from zero, so that differences between small values, of which clusters are
    made, do not drown in the squares of large ones.
    """
    zero = 0
    while zero < n and keys[zero] < 0:
        zero += 1
    w[zero] = s[zero] = q[zero] = 0.0
    for i in range(zero, n):
        value, times = number(keys[i]), tally[i]
        w[i + 1], s[i + 1] = w[i] + times, s[i] + times * value
        q[i + 1] = q[i] + times * value * value
    for i in range(zero - 1, -1, -1):
        value, times = number(keys[i]), tally[i]
        w[i], s[i] = w[i + 1] - times, s[i + 1] - times * value
        q[i] = q[i + 1] - times * value * value


@compiled
def within(w: Floats, s: Floats, q: Floats, i: int, j: int) -> float:
    """Sum of squared distances from their mean of the values i to j."""
    d: float = s[j] - s[i]
    squares: float = q[j] - q[i] - d * d / (w[j] - w[i])
    return squares


@compiled
def sooner(w: Floats, s: Floats, q: Floats, cost: Floats, i: int, j: int, at: int) -> bool:
    """Whether `at` is reached cheaper from j than from i: what `within` says, without divisions."""
    w_i, w_j = w[at] - w[i], w[at] - w[j]
    s_i, s_j = s[at] - s[i], s[at] - s[j]
    ahead = cost[j] - cost[i] - (q[j] - q[i])
    cheaper: bool = ahead * w_i * w_j < s_j * s_j * w_i - s_i * s_i * w_j
    return cheaper


@compiled
def chain(
    w: Floats, s: Floats, q: Floats, n: int, penalty: float,
    cost: Floats, before: Integers, queue: Integers, since: Integers,
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
        cost[j] = cost[i] + within(w, s, q, i, j) + penalty
        low = j + 1
        while tail >= head:
            i, low = queue[tail], max(since[tail], j + 1)
            if low > n or not sooner(w, s, q, cost, i, j, low):
                break
            tail -= 1
        if tail < head:
            tail = head
            queue[tail], since[tail] = j, j + 1
            continue
        i, high, step = queue[tail], low + 1, 1
        while high <= n and not sooner(w, s, q, cost, i, j, high):
            low, high, step = high, high + step, 2 * step
        high = min(high, n + 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if sooner(w, s, q, cost, i, j, middle):
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
def trace(before: Integers, n: int, links: int, path: Integers) -> None:
    """The places of a path, 0 and n included."""
    for link in range(links, -1, -1):
        path[link] = n
        n = before[n]


@compiled
def length(w: Floats, s: Floats, q: Floats, path: Integers, links: int) -> float:
    """Cost of a path without penalties."""
    total = 0.0
    for link in range(links):
        total += within(w, s, q, path[link], path[link + 1])
    return total


@compiled
def join(few: Integers, fewer: int, many: Integers, more: int, k: int, path: Integers) -> None:
    """A path of k links: the head of one path, then the tail of the other, which it surrounds."""
    shift, x = more - k, 0
    while few[x + 1] < many[x + 1 + shift]:
        x += 1
    for i in range(k + 1):
        path[i] = few[i] if i <= x else many[i + shift]


@compiled
def divide(
    w: Floats, s: Floats, q: Floats, n: int, k: int, path: Integers, room: Integers, guess: float
) -> float:
    """The cheapest path of exactly k links, k < n; returns the penalty that found it."""
    before, queue, since, few, many = room[0], room[1], room[2], room[3], room[4]
    cost = np.empty(n + 1)
    few[0], few[1], fewer = 0, n, 1
    for i in range(n + 1):
        many[i] = i
    more = n
    short, long = length(w, s, q, few, 1), length(w, s, q, many, n)
    low, high = 0.0, math.inf
    if k == 1:
        path[0], path[1] = 0, n
        return guess
    tries = 0
    while True:
        chord = tries >= _GUESSES or not low < guess < high
        penalty = (short - long) / (more - fewer) if chord else guess
        links = chain(w, s, q, n, penalty, cost, before, queue, since)
        if links == k:
            trace(before, n, links, path)
            return penalty
        if chord and (links <= fewer or links >= more):
            join(few, fewer, many, more, k, path)
            return penalty
        if fewer < links < k:
            trace(before, n, links, few)
            fewer, high, short = links, penalty, length(w, s, q, few, links)
        elif k < links < more:
            trace(before, n, links, many)
            more, low, long = links, penalty, length(w, s, q, many, links)
        # The cost of the best k clusters falls with 1 / k^2, so its slope with 1 / k^3.
        guess = penalty * (links / k) ** 3
        tries += 1


@compiled
def rounded(w: Floats, s: Floats, q: Floats, i: int, j: int) -> float:
    """Sum of squared distances of the values i to j from their mean, rounded to fp16."""
    if i >= j:
        return math.inf
    mean: float = (s[j] - s[i]) / (w[j] - w[i])
    away = half(mean) - mean
    cost: float = within(w, s, q, i, j) + away * away * (w[j] - w[i])
    return cost


@compiled
def refine(w: Floats, s: Floats, q: Floats, n: int, k: int, path: Integers) -> None:
    """The best path once means are rounded, of those that pass near the given one.

    Of paths equally good before, which are many where values lie on a grid, it takes the one that
    rounding spares; a dynamic program over the nearest places of every cut.
    """
    radius = 8 if k <= 64 else 4
    width = 2 * radius + 1
    choice = np.zeros((k + 1, width), np.int8)
    costs, now = np.full(width, math.inf), np.empty(width)
    costs[radius] = 0.0
    for cut in range(1, k + 1):
        reach = radius if cut < k else 0
        now[:] = math.inf
        for b in range(radius - reach, radius + reach + 1):
            j = path[cut] + b - radius
            if j > n:
                break
            for a in range(width):
                if costs[a] < math.inf:
                    cost = costs[a] + rounded(w, s, q, path[cut - 1] + a - radius, j)
                    if cost < now[b]:
                        now[b], choice[cut, b] = cost, a
        costs, now = now, costs
    a = radius
    for cut in range(k, 0, -1):
        path[cut] += a - radius
        a = choice[cut, a]


@compiled
def settle(
    w: Floats, s: Floats, q: Floats, keys: Integers, n: int, k: int,
    path: Integers, moved: Integers, lut: Floats,
) -> None:  # fmt: skip
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
        cost = 0.0
        for c in range(k):
            i, j = moved[c], moved[c + 1]
            if i < j:
                away = centres[c] - (s[j] - s[i]) / (w[j] - w[i])
                cost += within(w, s, q, i, j) + away * away * (w[j] - w[i])
        if cost >= best:
            return
        best = cost
        path[k] = n
        for c in range(k):
            path[c], lut[c] = moved[c], centres[c]


@compiled
def distinct(weights: Patterns, most: int) -> int:
    """The largest number of distinct values of any group, or -1 where a weight is no number.

    Counting ends at the first group that has more than `most`.
    """
    counts = np.zeros(PATTERNS, np.int32)
    keys, tally = np.empty(PATTERNS, np.int32), np.empty(PATTERNS, np.int32)
    largest_count = 0
    for group in weights:
        top = largest(group)
        if top >= INFINITE:
            return -1
        largest_count = max(largest_count, count(group, top, counts, keys, tally))
        if largest_count > most:
            break
    return largest_count


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
    counts, room = np.zeros(PATTERNS, np.int32), np.empty((7, PATTERNS), np.int32)
    keys, tally, path = room[5], room[6], np.empty(k + 1, np.int32)
    w, s, q = np.empty(PATTERNS), np.empty(PATTERNS), np.empty(PATTERNS)
    table = np.zeros(PATTERNS, np.uint8)
    share = 5.4 / k**3  # For Gaussian weights (Panter and Dite, Proc. IRE 39, 1951).
    for g in range(len(weights)):
        top = largest(weights[g])
        if top >= INFINITE:
            return False
        n = count(weights[g], top, counts, keys, tally)
        run_up(keys, tally, n, w, s, q)
        if n <= k:
            cells = n
            for i in range(n):
                luts[g, i], path[i] = number(keys[i]), i
            path[n] = n
        else:
            cells, spread = k, within(w, s, q, 0, n)
            share = divide(w, s, q, n, k, path, room[:5], share * spread) / spread
            refine(w, s, q, n, k, path)
            settle(w, s, q, keys, n, k, path, room[0], luts[g])
        for c in range(cells):
            for i in range(path[c], path[c + 1]):
                key = keys[i]
                table[key if key >= 0 else NEGATIVE - key] = c
        table[NEGATIVE] = table[0]
        look_up(weights[g], table, indices[g])
    return True


@compiled
def row_errors(weights: Patterns, luts: Floats, indices: Indices, errors: Floats) -> None:
    """Squared error of each row of groups, added to `errors`.

    Args:
        weights: fp16 patterns, uint16 `[groups, size]`.
        luts: float32 `[groups, k]`.
        indices: uint8 `[groups, size]`.
        errors: float64 `[groups, rows]`, zeros; rows divide the size.
    """
    values = np.empty(PATTERNS, np.float32)
    for pattern in range(PATTERNS):
        sign = pattern >= NEGATIVE
        values[pattern] = number(NEGATIVE - pattern if sign else pattern)
    width = weights.shape[1] // errors.shape[1]
    for g in range(len(weights)):
        table = luts[g]
        for row in range(errors.shape[1]):
            total = 0.0
            for i in range(row * width, (row + 1) * width):
                away = values[weights[g, i]] - table[indices[g, i]]
                total += away * away
            errors[g, row] = total
