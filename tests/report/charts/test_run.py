"""Figures over commits, a search, and speeds against the bound."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ane.gates.throughput.judge import Throughput, judge
from pytest_ane.manifest.policy import ThroughputPolicy
from pytest_ane.records.history import Course, Point
from pytest_ane.report.charts.run import history, pictures_of, recommend, throughput
from pytest_ane.report.run import Row, Run
from pytest_ane.report.verdict import to_json
from tests.gates.throughput.runs import speed
from tests.report.charts.drawn import drawn

SERIES = [(f"abc{i:03d}", f"2026-11-{i + 1:02d}", 0.99 if i < 12 else 0.93) for i in range(20)]


def test_a_step_is_marked_and_nothing_else() -> None:
    picture = history("cosine of m:L11", SERIES, 12, limit=0.97, good="above")
    found = drawn(picture)
    assert "0.9900 to 0.9300" in found.texts
    assert len(found.marks("rule")) == 2
    assert len(found.marks("symbol")) == 20
    assert picture.description == (
        "cosine of m:L11: 20 measurements, 0.9300 at the last. It steps at abc012: "
        "0.9900 to 0.9300. The policy asks for at least 0.97."
    )
    assert picture.table.rows[0] == ("abc000", "2026-11-01", 0.99)
    assert not drawn(history("cosine", SERIES)).marks("rule")
    assert len(drawn(history("speed", [("a", "t", 9.5)], unit="tok/s")).marks("symbol")) == 1
    assert history("cosine", []) is None


def test_commits_measured_twice_and_what_is_not_finite() -> None:
    found = drawn(history("cosine", [SERIES[0], SERIES[0], SERIES[1]]))
    assert {"abc000", "abc000 (2)", "abc001"} <= {*found.texts}
    picture = history("cosine", [*SERIES[:2], ("bad", "", float("nan"))], 2)
    found = drawn(picture)
    assert min(y for _, y in found.at("symbol")) < 0
    assert "0.9900 to NaN" in found.texts
    assert "marked above the frame: bad." in picture.description


def test_a_figure_of_two_backends_has_two_titles() -> None:
    points = (Point("a", "t", 1.0), Point("b", "t", 2.0))
    on_cpu, on_ane = (
        Course("throughput", "m", "", "tok_s", backend, points, None)
        for backend in ("cpu", "coreml")
    )
    titles = [picture.title for picture in pictures_of(Run("", (), courses=(on_cpu, on_ane)))]
    assert titles == ["m tok_s on cpu over commits", "m tok_s on coreml over commits"]
    (alone,) = pictures_of(Run("", (), courses=(on_cpu,)))
    assert alone.title == "m tok_s over commits"


def candidate(name: str, size: float, kl: object, *, passed: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "size": size,
        "kl": kl,
        "passed": passed,
        "reasons": [] if passed else ["KL 0.8 nats > 0.05"],
        "facts": {"cosine": 0.98, "top1": 0.9},
        "settings": {"four": 3 * size, "eight": size},
    }


FOUR, SIX = candidate("four", 70e6, 0.8), candidate("six", 100e6, 0.06)
MIXED, EIGHT = (
    candidate("mixed", 105e6, 0.04, passed=True),
    candidate("eight", 135e6, 0.05, passed=True),
)
DOCUMENT = {"max_kl": 0.05, "best": MIXED, "candidates": [FOUR, SIX, EIGHT, MIXED]}


def test_candidates_the_frontier_and_the_gate_s_line() -> None:
    picture = recommend(DOCUMENT)
    found = drawn(picture)
    assert len(found.marks("symbol")) == 4
    assert {"failed", "passed", "recommended", "the gate's limit, 0.05"} <= {*found.texts}
    assert {"mean KL, natssquare-root scale", "0.1", "0.2", "0.5"} <= {*found.texts}
    # Eight is larger than mixed and worse.
    (line,) = found.marks("line")
    assert line.get("d", "").count("L") == 2
    assert picture.description == (
        "Size against mean KL of 4 candidates, of which 2 passed. Recommended is mixed: "
        "105.00 MB, KL 0.0400 nats. The gate allows 0.0500 nats."
    )
    assert picture.table.rows[0][-2:] == ("failed", "four 75.0%, eight 25.0%")
    assert picture.table.columns[2].limit == 0.05


def test_candidates_without_kl_alone_or_none() -> None:
    picture = recommend({"candidates": [candidate("two", 30e6, "NaN"), MIXED]})
    assert min(y for _, y in drawn(picture).at("symbol")) < 0
    assert "marked above the frame: two." in picture.description
    assert len(drawn(recommend({"candidates": [FOUR]})).marks("symbol")) == 1
    assert recommend({"candidates": []}) is None
    assert recommend({}) is None


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


def test_the_bound_alone_and_nothing_at_all() -> None:
    speeds, time, _ = throughput(None, BOUND)
    assert ": at most 100 tok/s with T = 1." in speeds.description
    assert "smollm2, at least takes 10 ms" in time.description
    assert not [*throughput(None)]
    assert not [*throughput(Run("", (Row("fidelity", "m:L01", "passed", ""),)))]
