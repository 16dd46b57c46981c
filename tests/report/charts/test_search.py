"""Megabytes against KL."""

from __future__ import annotations

from typing import Any

from pytest_ane.report.charts.run import recommend
from tests.report.charts.drawn import drawn


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


def test_a_candidate_without_kl_is_above_the_frame() -> None:
    picture = recommend({"candidates": [candidate("two", 30e6, "NaN"), MIXED]})
    assert min(y for _, y in drawn(picture).at("symbol")) < 0
    assert "marked above the frame: two." in picture.description


def test_one_candidate_alone() -> None:
    assert len(drawn(recommend({"candidates": [FOUR]})).marks("symbol")) == 1


def test_without_candidates_there_is_no_picture() -> None:
    assert recommend({"candidates": []}) is None
    assert recommend({}) is None
