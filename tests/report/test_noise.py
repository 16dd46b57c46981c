"""The table of noise: worst first, and how well sigma is known."""

from __future__ import annotations

from pytest_ane.gates.throughput.noise import Calibration, Noise
from pytest_ane.report.noise import lines
from tests.gates.throughput.runs import HERE


def noise(*medians: float, subject: str = "m:L01") -> Noise:
    return Noise(what="load", subject=subject, tokens=0, medians=medians)


def test_the_noisiest_comes_first() -> None:
    quiet, loud = noise(*[1.0, 1.01] * 5), noise(*[1.0, 1.2] * 5, subject="m:L02")
    found = list(lines(Calibration(identity=HERE, noises=(quiet, loud))))
    assert found == [
        "",
        "Apple M4 Max, macOS 26.1, coreml, CPU_AND_NE",
        "benchmark      median    sigma  2.8 sigma  runs",
        "m:L02 load     1.10 s   9.58 %     26.8 %    10",
        "m:L01 load     1.00 s  0.524 %     1.47 %    10",
    ]


def test_few_runs_are_said() -> None:
    found = list(lines(Calibration(identity=HERE, noises=(noise(1.0, 1.0, 1.1, 0.9, 1.0),))))
    assert found[-1] == "sigma of 5 runs is itself known to 35.4 %; see --runs"


def test_calls_say_their_positions_where_they_are_known() -> None:
    calls = [
        Noise(what="call", subject="m:L01", tokens=tokens, medians=(1.0, 1.0 + tokens / 10))
        for tokens in (0, 1, 4)
    ]
    found = list(lines(Calibration(identity=HERE, noises=tuple(calls))))
    assert [line.split("  ")[0] for line in found[3:6]] == ["m:L01 T=4", "m:L01 T=1", "m:L01 call"]
