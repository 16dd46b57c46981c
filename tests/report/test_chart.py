"""A curve of letters."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.report.chart import chart


def test_a_decade_a_line() -> None:
    values = [10.0**i for i in range(-7, 1)]
    names = [f"L{i:02d}" for i in range(8)]
    assert list(chart("powers of ten", {"#": values[1:], "o": [1e-6] * 7}, names[:7])) == [
        "powers of ten",
        "  1.0e+00 |                        #",
        "  1.4e-01 |                    #",
        "  1.9e-02 |                #",
        "  2.7e-03 |            #",
        "  3.7e-04 |",
        "  5.2e-05 |        #",
        "  7.2e-06 |    #",
        "  1.0e-06 |o   o   o   o   o   o   o",
        "          +----------------------------",
        "           L00                      L06",
    ]


def test_nan_and_infinity_stand_out() -> None:
    found = list(chart("", {"#": [math.nan, 1.0, math.inf, 0.0]}, ["a", "b", "c", "d"]))
    assert found[1].endswith("|!       !")
    assert found[8].endswith("|    #       #")


def test_all_alike() -> None:
    assert list(chart("", {"#": [0.0, 0.0]}, ["a", "b"]))[8] == "  1.0e+00 |#   #"


@given(st.lists(st.floats(0, width=32) | st.just(math.nan), min_size=1, max_size=300))
def test_it_fits_80_columns_and_shows_the_largest(values: list[float]) -> None:
    found = list(chart("title", {"#": values}, [f"L{i:03d}" for i in range(len(values))]))
    assert len(found) == 11
    assert max(map(len, found)) <= 80
    assert sum(line.count("#") + line.count("!") for line in found) == min(len(values), 68)
    assert ("!" in found[1]) == any(not math.isfinite(v) for v in values)
