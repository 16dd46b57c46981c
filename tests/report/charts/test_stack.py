"""Drift over the layers, as it is drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_ane.gates.behaviour import Behaviour, judge
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.probes.exact_chain import StackState
from pytest_ane.report.charts.run import drift, spec
from pytest_ane.report.verdict import to_json
from tests.gates.behaviour.test_judge import ALONE, GOOD, NAN
from tests.report.charts.drawn import drawn

INF = float("inf")


def behaviour(errors: Sequence[float] = ()) -> dict[str, Any]:
    """JSON data of a verdict on a stack with these errors."""
    states = tuple(StackState(f"L{i:02d}", error, 0.9) for i, error in enumerate(errors))
    measured = Behaviour((GOOD,), ALONE, {}, drift=states)
    # A run's file: what is not finite is text.
    made: dict[str, Any] = json.loads(json.dumps(to_json(judge(measured, BehaviourPolicy(), "m"))))
    return made


def test_drift_marks_the_steepest_shard() -> None:
    picture = drift(behaviour(errors=(0.01, 0.02, 0.5, 0.51)))
    found = drawn(picture)
    assert found.texts.count("L02") == 1
    assert "0.0200 to 0.5000" in found.texts
    assert {"relative L2, square-root scale", "0"} <= {*found.texts}
    assert len(found.marks("line")) == 1
    assert len(found.marks("rule")) == 1
    assert picture.description == (
        "Relative L2 of the hidden states after 4 shards, 0.5100 at the end. "
        "It rises most at L02: 0.0200 to 0.5000."
    )
    assert picture.table.rows == (("L00", 0.01), ("L01", 0.02), ("L02", 0.5), ("L03", 0.51))


def test_drift_of_two_runs_has_two_lines() -> None:
    picture = drift(behaviour(errors=(0.01, 0.02)), behaviour(errors=(0.03, 0.04)))
    found = drawn(picture)
    assert len(found.marks("line")) == 2
    assert {"this run", "the run before"} <= {*found.texts}
    assert "The run before had 0.0400 at its end." in picture.description
    assert picture.table.rows == (("L00", 0.01, 0.03), ("L01", 0.02, 0.04))
    picture = drift(behaviour(errors=(0.01, 0.02)), behaviour(errors=(0.03,)))
    assert picture.table.rows[1] == ("L01", 0.02, None)
    found = drawn(drift(behaviour(errors=(0.25,))))
    assert len(found.marks("symbol")) == 1
    assert not found.marks("rule")


@pytest.mark.parametrize("value", [NAN, INF])
def test_drift_that_is_not_finite_is_above_the_frame(value: float) -> None:
    picture = drift(behaviour(errors=(0.01, value, 0.3)))
    assert min(y for _, y in drawn(picture).at("symbol")) < 0
    assert "Not finite, and marked above the frame: L01." in picture.description
    word = "NaN" if value is NAN else "inf"
    assert f"It rises most at L01: 0.0100 to {word}." in picture.description


def test_the_command_s_json_is_drawn_too() -> None:
    def shard(name: str, l2: object) -> dict[str, Any]:
        return {"shard": name, "stack": {"rest": {"relative_l2": l2, "cosine": 1}}}

    last = {"shard": "head.0", "stack": {"rest": None}}
    picture = drift({"shards": [shard("L00", 0.1), shard("L01", "NaN"), last]})
    assert [row[0] for row in picture.table.rows] == ["L00", "L01"]


def test_many_shards_are_small_and_drawn_and_none_are_no_picture() -> None:
    picture = drift(*[behaviour(errors=[0.001 * i for i in range(240)])] * 2)
    assert len(json.dumps(spec(picture))) < 40_000
    assert len(drawn(picture).marks("symbol")) == 480
    assert drift(behaviour()) is None
    assert drift({}, behaviour(errors=(0.1,))) is None
