"""Speeds against the bound, a token's time, and speculative decoding."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.gates.throughput.judge import Throughput, judge
from pytest_ane.manifest.policy import ThroughputPolicy
from pytest_ane.report.charts.run import speculation, throughput
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Run
from pytest_ane.report.verdict import to_json
from tests.gates.throughput.runs import speed
from tests.report.charts.drawn import drawn

BOUND = {
    "name": "smollm2",
    "device": {"name": "M4 Max with another bandwidth"},
    "calls": [
        {
            "tokens": 1,
            "rate": 100.0,
            "kinds": [{"kind": "block", "seconds": 0.008}, {"kind": "head", "seconds": 0.002}],
        },
        {"tokens": 4, "rate": 300.0, "kinds": []},
    ],
    "measured": [{"runtime": "mlx", "device": "M4 Max GPU", "tok_s": 50.0, "tokens": 1}],
}


def run(chip: str = "Apple M4 Max", backend: str = "coreml", **more: Any) -> Run:
    """A run whose model decodes 10 tokens a second, and one of whose shards was timed."""
    identity = {"backend": backend, "chip": chip}
    timed = [
        speed(0.1, subject="m", tokens=1, identity=identity, **more),
        speed(0.001, what="call", subject="m:L01", tokens=1, identity=identity),
    ]
    rows = [
        Row("throughput", each.subject, "passed", "", data=to_json(
            judge(Throughput(each), ThroughputPolicy(), each.subject)
        ))
        for each in timed
    ]  # fmt: skip
    return Run("", tuple(rows))


PROFILE = {"profile": {"block": 0.08, "host": 0.02}, "counts": {"block": 30}}


def test_speeds_and_the_bound_of_the_same_chip_share_a_picture() -> None:
    speeds, time, other = throughput(run(**PROFILE), BOUND)
    assert speeds.title == "Tokens a second on M4 Max"
    assert "m: 10.00 tok/s, 10.0% of the bound." in speeds.description
    found = drawn(speeds)
    assert len(found.marks("rect")) == 3
    assert {"10.00 tok/s", "100 tok/s", "at most, T = 4"} <= {*found.texts}
    assert "most of it block: 80.0%" in time.description
    assert len(drawn(time).marks("rect")) == 4
    assert other.title == "Tokens a second on M4 Max GPU"


@pytest.mark.parametrize("where", [("Apple M4 Max", "cpu"), ("Apple M1", "coreml")])
def test_speeds_of_another_machine_are_not_held_against_the_bound(where: tuple[str, str]) -> None:
    pictures = [*throughput(run(*where), BOUND)]
    machines = [p.title for p in pictures if p.title.startswith("Tokens")]
    assert len(machines) == 3
    assert "of the bound" not in " ".join(p.description for p in pictures)


def test_the_bound_alone() -> None:
    speeds, time, _ = throughput(None, BOUND)
    assert "At most 100 tok/s with T = 1; nothing was measured there" in speeds.description
    assert "smollm2, at least takes 10 ms" in time.description


def test_without_benchmarks_and_without_a_bound_there_is_no_picture() -> None:
    assert not [*throughput(None)]
    assert not [*throughput(Run("", (Row("fidelity", "m:L01", "passed", ""),)))]


def test_hostile_parts_stay_text() -> None:
    name = "<script>"
    _, time = throughput(run(profile={name: 0.1}, counts={}))
    assert name in drawn(time).texts


def trial(width: int, accepted: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt": "france",
        "width": width,
        "cost": {"t1": 0.1, "tv": 0.1 + 0.03 * width},
        "speculated": {"accepted": accepted, "calls": [0.1] * 10},
        **more,
    }


def test_tokens_per_call_against_width() -> None:
    widths = [{"width": 2, "tokens_per_call": 1.5}, {"width": 3, "tokens_per_call": 1.75}]
    picture = speculation([trial(2, 5, widths=widths), trial(4, 14)])
    found = drawn(picture)
    assert len(found.marks("symbol")) == 6
    assert {"measured", "needed to pay", "by lookup in this text"} <= {*found.texts}
    says = "Prompt france, width {}: a call yields {} tokens and must yield {}, so it {}."
    assert picture.description == " ".join(
        (
            says.format(2, "1.5000", "1.6000", "does not pay"),
            says.format(4, "2.4000", "2.2000", "pays"),
        )
    )


def test_without_calls_there_is_no_picture() -> None:
    assert speculation([]) is None
    assert speculation([{"cost": {"t1": 0.1, "tv": 0.4}, "speculated": None}]) is None
    assert speculation([trial(4, 0, speculated={"accepted": 0, "calls": []})]) is None
