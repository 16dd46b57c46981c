"""One-dimensional k-means: a palette for one group of weights, close to the best there is.

In one dimension clusters are intervals of the sorted values (Fisher, JASA 53, 1958). So a palette
is a list of edges between cells, and the cost of a cell a difference of prefix sums. Lloyd's
iteration alone stays where its start put the cells: on trained weights 24 to 40 % above the best
squared error at 6 bits, on heavy tails many times that. Here cells also change places, and a
dynamic program then finds the best edges near those found: 1 to 4 % above on the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Edges = npt.NDArray[np.int64]

_EXACT = 128
"""Up to so many distinct values the dynamic program looks everywhere: the result is the best."""


def palette(weights: npt.NDArray[Any], nbits: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A palette of 2^nbits fp16 values and the index of each weight in it.

    Args:
        weights: any shape, not empty; compared as the fp16 values they are stored as.
        nbits: 1 to 8.

    Returns:
        `lut` float16 `[2^nbits]`, ascending, and `indices` uint8 of the size of `weights`, flat,
        each pointing at the nearest entry. Exact where there are at most 2^nbits distinct values.

    Raises:
        ValueError: a weight is NaN, or infinite in fp16.
    """
    with np.errstate(over="ignore"):
        stored = weights.astype(np.float16).ravel()
    if not np.isfinite(stored).all():
        raise ValueError("a weight is NaN, or beyond fp16's largest value of 65504")
    values = stored.astype(np.float64)
    lut = np.resize(_centres(values, 2**nbits), 2**nbits).astype(np.float16)
    lut.sort()
    wide = lut.astype(np.float64)
    indices = np.searchsorted((wide[1:] + wide[:-1]) / 2, values)
    return lut, indices.astype(np.uint8)


def _centres(values: Floats, size: int) -> Floats:
    """At most `size` centres: the distinct values if they suffice."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= size:
        return distinct
    line = _Line.of(distinct, counts)
    edges = _equalise(line, size)
    if len(distinct) <= _EXACT:
        return line.means(_refine(line, edges, radius=_EXACT))
    edges = _exchange(line, _lloyd(line, edges))
    # The program's work grows with size * radius^2.
    return line.means(_refine(line, edges, radius=max(16, 512 // size)))


@dataclass(frozen=True, eq=False)
class _Line:
    """Distinct values, ascending, with prefix sums of their counts, sums and squares.

    Cell i of k holds the values from `edges[i]` up to `edges[i + 1]`; none is empty.
    """

    values: Floats
    count: Floats
    sum: Floats
    square: Floats

    @classmethod
    def of(cls, values: Floats, counts: npt.NDArray[Any]) -> _Line:
        sums = (np.cumsum(counts * values**power) for power in range(3))
        return cls(values, *(np.concatenate([[0.0], s]) for s in sums))

    def means(self, edges: Edges) -> Floats:
        """Mean of each cell."""
        return np.diff(self.sum[edges]) / np.diff(self.count[edges])

    def cost(self, edges: Edges) -> Floats:
        """Sum of squared distances from the mean, for each cell."""
        raw = np.diff(self.square[edges]) - np.diff(self.sum[edges]) * self.means(edges)
        return np.maximum(raw, 0.0)


def _separate(edges: Edges, last: int) -> Edges:
    """Push edges apart until every cell has a value; the outer ones become 0 and `last`."""
    order = np.arange(len(edges))
    apart = np.maximum.accumulate(edges - order) + order
    apart[0] = 0
    separate: Edges = np.minimum(apart, last - order[::-1])
    return separate


def _equalise(line: _Line, size: int) -> Edges:
    """Cells whose cube root of cost is alike, as for the best many (Panter and Dite, 1951)."""
    last = len(line.values)
    edges = np.linspace(0, last, size + 1).astype(np.int64)
    for _ in range(8):
        roots = np.concatenate([[0.0], np.cumsum(np.cbrt(line.cost(edges)))])
        even = np.linspace(0.0, roots[-1], size + 1)
        edges = _separate(np.rint(np.interp(even, roots, edges)).astype(np.int64), last)
    return edges


def _lloyd(line: _Line, edges: Edges) -> Edges:
    """Move each edge half way between its cells' means until none moves (Lloyd, 1982)."""
    for _ in range(40):
        means = line.means(edges)
        inner = np.searchsorted(line.values, (means[1:] + means[:-1]) / 2)
        moved = _separate(np.concatenate([[0], inner, edges[-1:]]), int(edges[-1]))
        if np.array_equal(moved, edges):
            break
        edges = moved
    return edges


def _exchange(line: _Line, edges: Edges) -> Edges:
    """Split costly cells and merge cheap neighbours as long as that lowers the whole cost."""
    moves = max(1, len(edges) // 8)
    cost = line.cost(edges).sum()
    while moves:
        split = _split(line, edges, moves)
        moved = _lloyd(line, _merge(line, split, len(split) - len(edges)))
        if (now := line.cost(moved).sum()) < cost * (1 - 1e-4):
            edges, cost = moved, now
        else:
            moves //= 2
    return edges


def _split(line: _Line, edges: Edges, moves: int) -> Edges:
    """Cut the cells that gain most by it, each at its best place."""
    places = np.arange(edges[-1])
    cell = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    low, high = edges[:-1][cell], edges[1:][cell]
    gain = np.where(places > low, _gain(line, low, places, high), 0.0)
    best = np.maximum.reduceat(gain, edges[:-1])
    chosen = [c for c in np.argsort(-best)[:moves] if best[c] > 0]
    cuts = [edges[c] + gain[edges[c] : edges[c + 1]].argmax() for c in chosen]
    return np.sort(np.concatenate([edges, np.array(cuts, dtype=np.int64)]))


def _merge(line: _Line, edges: Edges, moves: int) -> Edges:
    """Remove the inner edges that cost least to lose."""
    loss = _gain(line, edges[:-2], edges[1:-1], edges[2:])
    return np.delete(edges, np.argsort(loss)[:moves] + 1)


def _gain(line: _Line, low: Edges, cut: Edges, high: Edges) -> Floats:
    """What an edge at `cut` saves: n1 n2 / (n1 + n2) (m1 - m2)^2; NaN where a side is empty."""
    n1, n2 = line.count[cut] - line.count[low], line.count[high] - line.count[cut]
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = (line.sum[cut] - line.sum[low]) / n1 - (line.sum[high] - line.sum[cut]) / n2
    saved: Floats = n1 * n2 / (n1 + n2) * apart**2
    return saved


def _refine(line: _Line, edges: Edges, radius: int) -> Edges:
    """The best edges of all that lie within `radius` of the given ones: a dynamic program.

    Cell costs differ from -sum^2 / count by a constant, so the largest total of that is the best.
    """
    size, last = len(edges) - 1, int(edges[-1])
    places, total, choices = [edges[:1]], np.zeros(1), []
    for i in range(1, size + 1):
        low, high = max(i, edges[i] - radius), min(last - size + i, edges[i] + radius)
        here = np.arange(low, high + 1) if i < size else edges[-1:]
        count = line.count[here] - line.count[places[-1]][:, None]
        part = line.sum[here] - line.sum[places[-1]][:, None]
        worth = np.where(count > 0, part * part / np.where(count > 0, count, 1.0), -np.inf)
        worth += total[:, None]
        choices.append(worth.argmax(axis=0))
        total = worth.max(axis=0)
        places.append(here)
    found, choice = [last], 0
    for before, picks in zip(places[-2::-1], choices[::-1], strict=True):
        choice = int(picks[choice])
        found.append(int(before[choice]))
    return np.array(found[::-1])
