"""How the errors of each probe are spread over positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.verdict import Cell
from pytest_ane.report.verdict import details
from tests.gates.fidelity.verdicts import CAPTURED, GOOD, NAN, comparison, of


def errors(*relative: float) -> Sequence[Cell]:
    """The row of a captured probe with these errors at positions 1, 2, ..."""
    probe = replace(comparison(*(0.99,) * len(relative)), relative=relative)
    table = of(probe).table("errors")
    (row,) = table.rows
    return row


def test_statistics_and_histogram_of_every_probe() -> None:
    probe, output, *numbers = errors(*(0.1 + 0.01 * i for i in range(11)), 0.7)
    assert (probe, output) == ("captured chat T=2", "y")
    assert numbers[:9] == [12, 0, 0.19583, 0.155, 0.199, 0.645, 0.7, 0.1, 0.7]
    assert numbers[9:] == [5, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_undefined_errors_are_counted_and_in_no_statistic() -> None:
    _, _, *numbers = errors(0.5, NAN, math.inf)
    assert numbers == [3, 2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1, *[0] * 11]
    assert errors(NAN)[2:] == (1, 1, *[None] * 19)


def test_position_0_of_captured_probes_is_left_out() -> None:
    first = replace(CAPTURED, positions=(0, 1), relative=(9.0, 0.25))
    table = of(GOOD, first).table("errors")
    assert [(row[0], row[2], row[8]) for row in table.rows] == [
        ("gaussian T=2 #0", 2, 0.1), ("captured chat T=2", 1, 0.25)
    ]  # fmt: skip


def test_the_terminal_does_not_print_it() -> None:
    assert "relative L2 over positions" not in "\n".join(details(of(GOOD)))


@given(st.lists(st.floats(0) | st.just(NAN), min_size=1, max_size=50))
def test_every_position_is_in_the_histogram_or_undefined(relative: list[float]) -> None:
    _, _, positions, undefined, *rest = errors(*relative)
    counts = [count for count in rest[7:] if isinstance(count, int)]
    assert isinstance(undefined, int)
    assert sum(counts) + undefined == positions == len(relative)
