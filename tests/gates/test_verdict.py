"""The verdict: its status and its figures follow from what it carries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.verdict import Column, Figure, Finding, Table, Verdict, Where, nothing


@pytest.mark.parametrize(
    ("severities", "status"),
    [
        ((), "passed"),
        (("note", "warned"), "passed"),
        (("unproven", "note"), "unproven"),
        (("unproven", "failed", "warned"), "failed"),
    ],
)
def test_the_gravest_finding_is_the_status(severities: tuple[Any, ...], status: str) -> None:
    verdict = Verdict("g", "m:L01", findings=tuple(Finding(s, "It is so") for s in severities))
    assert verdict.status == status
    grave = [s for s in severities if s in ("failed", "unproven")]
    assert [finding.severity for finding in verdict.reasons] == grave
    assert len(verdict.warnings) == severities.count("warned")


@pytest.mark.parametrize(
    ("value", "good", "passes"),
    [
        (0.97, "above", True),
        (0.96, "above", False),
        (0.97, "below", True),
        (0.98, "below", False),
        (math.nan, "above", False),
        (math.nan, "below", False),
    ],
)
def test_a_figure_and_its_limit(value: float, good: Any, passes: bool) -> None:
    assert Figure("f", value, limit=0.97, good=good).passes is passes
    assert Figure("f", value).passes


def test_the_least_headroom_decides() -> None:
    assert Figure("f", 0.98, limit=0.97, good="above").headroom == pytest.approx(0.01 / 0.97)
    assert Figure("f", 0.5, limit=0.0, good="below").headroom == 0.5
    assert Figure("f", 0.5).headroom == math.inf


def test_the_most_particular_place_is_named_and_tables_are_rectangular() -> None:
    assert Where(probe="p", output="y").noun == "probe"
    assert Where(op="o", weight="w").name == "w"
    assert (Where().noun, Where().name) == ("", "")
    with pytest.raises(ValueError, match="has not 1 cells"):
        Table("t", (Column("a"),), ((1, 2),))
    verdict = nothing("fidelity", "m:L01", "Nothing was compared", "add probes")
    assert (verdict.status, verdict.reasons[0].remedy) == ("unproven", "add probes")


def test_numbers_of_numpy_become_python_s() -> None:
    """A worker of pytest-xdist cannot send others."""
    figure = Figure("a", np.float64(0.5), limit=np.float32(0.25), of=np.int64(3))
    table = Table("t", (Column("a"), Column("b")), ((np.float32(0.5), "x"),))
    numbers = (figure.value, figure.limit, figure.of, table.rows[0][0])
    assert [type(number) for number in numbers] == [float, float, int, float]
    assert numbers == (0.5, 0.25, 3, 0.5)
