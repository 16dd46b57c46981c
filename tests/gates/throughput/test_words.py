"""How speeds are written."""

from __future__ import annotations

import pytest

from pytest_ane.gates.throughput.baseline import Baseline
from pytest_ane.gates.throughput.noise import Noise
from pytest_ane.gates.throughput.words import details, figure, machine, percent, seconds, title
from tests.gates.throughput.runs import speed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.00 s"),
        (75.25, "75.25 s"),
        (0.8125, "812.5 ms"),
        (3e-4, "0.3 ms"),
        (2e-6, "0.002 ms"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.05, "5 %"), (0.1239, "12.4 %"), (0.003, "0.3 %"), (0, "0 %"), (1.5, "150 %")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
    assert percent(share, signed=True) == f"+{text}"
    if share:
        assert percent(-share, signed=True) == f"-{text}"


def test_figures() -> None:
    assert figure(speed(4.0)) == "10.00 tok/s"
    assert figure(speed(0.01, tokens=64)) == "6,400 tok/s"
    load = speed(0.3, what="load", tokens=0)
    assert (figure(load), title(load)) == ("300 ms", "load")
    assert machine(speed(identity={"chip": "M1", "model": "", "units": "ALL"})) == "M1, ALL"
    assert machine(speed(identity={})) == "an unknown machine"


def test_details_without_a_baseline() -> None:
    assert list(details(speed(4.0, 5.0, 3.0), None)) == [
        "now       10.00 tok/s: median 4.00 s of 3 rounds, 3.00 s to 5.00 s"
    ]


def test_many_changed_packages_are_counted() -> None:
    digests = {f"L{i:02}": "a" for i in range(8)}
    now, then = speed(4.0, artifacts=digests), speed(4.0, artifacts=dict.fromkeys(digests, "b"))
    assert list(details(now, Baseline(then, "0001")))[2:] == [
        "packages changed since: L00, L01, L02, L03, L04 and 3 more"
    ]


def test_noise_says_how_well_it_is_known() -> None:
    noise = Noise(what="load", subject="m", tokens=0, medians=(0.9, 1.0, 1.1))
    assert list(details(speed(4.0), Baseline(speed(4.0), "0001", noise=noise)))[2:] == [
        "noise     sigma 10 % of 3 unchanged runs, itself known to 50 %; 2.8 sigma is 28 %"
    ]
