"""How speeds are written."""

from __future__ import annotations

import pytest

from pytest_ane.gates.throughput.speed import percent, seconds
from tests.gates.throughput.runs import speed


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00 s"), (0.8125, "812.5 ms"), (2e-6, "0.002 ms")]
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.05, "5 %"), (0.1239, "12.4 %"), (0.003, "0.3 %"), (0, "0 %"), (49.5, "4,950 %")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
    assert percent(share, signed=True) == f"+{text}"


def test_figures_and_the_confirmation() -> None:
    assert speed(4.0).figure() == "10.00 tok/s"
    assert speed(4.0).figure(5.0) == "8.00 tok/s"
    assert speed(0.01, tokens=64).figure() == "6,400 tok/s"
    load = speed(0.3, what="load", tokens=0)
    assert (load.figure(), load.title) == ("300 ms", "load")
    assert speed(identity={"chip": "M1", "model": "", "units": "ALL"}).machine == "M1, ALL"
    assert speed(identity={}).machine == "an unknown machine"
    confirmed = speed(4.0, 5.0, 9.0, confirmation=(2.0, 3.0, 4.0))
    assert (confirmed.median, confirmed.medians) == (5.0, (5.0, 3.0))
    assert confirmed.tok_s == 8.0
