"""The shortest path over a chain of operations: states are (operation, backend).

A path costs the estimates of its states, a launch where it enters a backend, a switch at each
change of backend, and an end for the backend of its last operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

Row = Sequence[float]


@dataclass(frozen=True)
class Edges:
    """Milliseconds by backend: entering it first, changing to it, ending on it."""

    launch: Row
    switch: Row
    end: Row


@dataclass(frozen=True)
class Paths:
    """Best paths of a chain.

    Attributes:
        total: cost of the best path, in ms; infinite where no backend takes an operation.
        through: per operation and backend, cost of the best path with it there.
        chosen: a best path, backends by operation; where several are best it stays on a backend
            as long as it can, and starts with the first of them.
    """

    total: float
    through: tuple[tuple[float, ...], ...]
    chosen: tuple[int, ...]


def shortest(costs: Sequence[Row], edges: Edges, tie: float) -> Paths:
    """Best paths in time linear in the operations.

    Args:
        costs: ms, `[operations, backends]`; infinite where a backend does not take one.
        edges: ms of launches, switches and ends.
        tie: ms up to which two paths cost the same.
    """
    if not costs:
        return Paths(0.0, (), ())
    enter, before = _enter(edges), _forward(costs, edges)
    after = [list(edges.end)]
    for row in reversed(costs[1:]):
        onward = list(map(add, after[-1], row))
        least = min(map(add, onward, enter))
        after.append([min(ms, least) for ms in onward])
    after.reverse()

    through = tuple(tuple(map(add, *row)) for row in zip(before, after, strict=True))
    total = min(through[0])
    if math.isinf(total):
        return Paths(total, through, ())
    return Paths(total, through, _follow(costs, after, enter, through[0], tie))


def best_cost(costs: Sequence[Row], edges: Edges) -> float:
    """The cost of a best path alone, in ms."""
    return min(map(add, _forward(costs, edges)[-1], edges.end)) if costs else 0.0


def _enter(edges: Edges) -> list[float]:
    """Entering a backend costs the same from any other; staying is free."""
    return list(map(add, edges.launch, edges.switch))


def _forward(costs: Sequence[Row], edges: Edges) -> list[list[float]]:
    """Cost of the best path up to each state, that state's included."""
    enter = _enter(edges)
    before = [list(map(add, edges.launch, costs[0]))]
    for row in costs[1:]:
        last = before[-1]
        least = min(last)
        before.append(
            [
                min(ms, least + entry) + cost
                for ms, entry, cost in zip(last, enter, row, strict=True)
            ]
        )
    return before


def _follow(
    costs: Sequence[Row], after: Sequence[Row], enter: Row, first: Row, tie: float
) -> tuple[int, ...]:
    backends = range(len(enter))
    least = min(first)
    current = next(b for b in backends if first[b] <= least + tie)
    chosen = [current]
    for row, onward in zip(costs[1:], after[1:], strict=True):
        options = [row[b] + onward[b] + (b != current) * enter[b] for b in backends]
        least = min(options)
        if options[current] > least + tie:
            current = options.index(least)
        chosen.append(current)
    return tuple(chosen)
