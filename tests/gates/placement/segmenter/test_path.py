"""The shortest path, held against all paths of small chains."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.placement.segmenter.path import Edges, best_cost, shortest

# Quarters are exact in binary, so that equal paths cost the same to the last bit.
_MS = st.integers(0, 12).map(lambda quarters: quarters / 4)
_EDGES = Edges([0.125, 0.0, 0.125], [0.125] * 3, [0.125, 0.0, 0.125])


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[tuple[float, ...]], Edges]:
    """Up to 5 operations on up to 4 backends; the last backend takes every operation."""
    backends = draw(st.integers(1, 4))
    edges = [draw(st.lists(_MS, min_size=backends, max_size=backends)) for _ in range(3)]
    cost = _MS | st.just(math.inf)
    row = st.tuples(*[cost] * (backends - 1), _MS)
    return draw(st.lists(row, min_size=1, max_size=5)), Edges(*edges)


def _cost(costs: list[tuple[float, ...]], edges: Edges, path: tuple[int, ...]) -> float:
    """Term by term: the launch of each segment, each operation, each switch, the end."""
    total, previous = 0.0, None
    for row, backend in zip(costs, path, strict=True):
        if backend != previous:
            total += edges.launch[backend]
            total += 0.0 if previous is None else edges.switch[backend]
        total += row[backend]
        previous = backend
    return total + edges.end[path[-1]]


@given(chains())
def test_every_path_costs_at_least_the_best(
    chain: tuple[list[tuple[float, ...]], Edges],
) -> None:
    costs, edges = chain
    paths = shortest(costs, edges, 1e-9)
    backends = range(len(edges.launch))
    every = {
        path: _cost(costs, edges, path) for path in itertools.product(backends, repeat=len(costs))
    }
    assert paths.total == min(every.values())
    assert every[paths.chosen] == paths.total == best_cost(costs, edges)
    for index, row in enumerate(paths.through):
        for backend, through in enumerate(row):
            assert through == min(ms for path, ms in every.items() if path[index] == backend)


@pytest.mark.parametrize(
    ("costs", "chosen", "total"),
    [
        # A whole chain on the ANE: launch and end, 0.25.
        ([(0.1, 0.5, 9), (0.1, 0.5, 9)], (0, 0), 0.45),
        # Too little work: the CPU needs neither.
        ([(0.1, 0.3, 9)], (1,), 0.3),
        # In the middle: switch and launch, then a switch back, 0.375.
        ([(9, 0.1, 9), (0.1, 0.5, 9), (9, 0.1, 9)], (1, 0, 1), 0.675),
        ([(9, 0.1, 9), (0.1, 0.4, 9), (9, 0.1, 9)], (1, 1, 1), 0.6),
        # At the tail the end is paid instead of the switch back.
        ([(9, 0.1, 9), (0.1, 0.5, 9)], (1, 0), 0.575),
        # A tie stays where it is.
        ([(0, 1, 9), (0.5, 0.5, 9)], (0, 0), 0.75),
    ],
)
def test_a_segment_pays_for_launch_and_switches(
    costs: list[tuple[float, ...]], chosen: tuple[int, ...], total: float
) -> None:
    paths = shortest(costs, _EDGES, 1e-6)
    assert paths.chosen == chosen
    assert paths.total == pytest.approx(total)


def test_an_empty_chain_costs_nothing() -> None:
    assert shortest([], _EDGES, 1e-6).total == best_cost([], _EDGES) == 0.0


def test_an_operation_no_backend_takes_has_no_path() -> None:
    paths = shortest([(math.inf,) * 3], _EDGES, 1e-6)
    assert (paths.total, paths.chosen) == (math.inf, ())
