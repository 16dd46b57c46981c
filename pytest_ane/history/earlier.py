"""What a report shows of earlier runs: the figures of the last one, and a figure's course."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from pytest_ane.history.memory import Memory, Series
from pytest_ane.history.overview import turns
from pytest_ane.history.steps import change_points

Asked: TypeAlias = tuple[str, str, str]
"""A gate, its subject and the test, which is empty where a gate has one."""


@dataclass(frozen=True)
class Earlier:
    """What a run measured.

    Attributes:
        label: of its commit, `1a2b3c4d5`, or of the run outside of git.
        time: UTC, `2026-11-21 10:00:00`.
        commit: full id; empty outside of git.
        figures: values by name, of each gate, subject and test; texts are left out.
    """

    label: str
    time: str
    commit: str
    figures: Mapping[Asked, Mapping[str, float]] = field(default_factory=dict)


_BACK = 20
"""Runs in which a measurement is looked for."""
_MOST_STEPS = 6
"""Steps whose figures a report draws."""
_DRAWN = (("behaviour", "kl.mean"), ("throughput", "tok_s"))
"""Figures that it draws in any case."""


class Point(NamedTuple):
    """A figure in one run.

    Attributes:
        label: as of `Earlier`.
        time: UTC, `2026-11-21 10:00:00`.
        value: as measured.
    """

    label: str
    time: str
    value: float


def last_before(folder: Path, run: str, models: Sequence[str]) -> Earlier | None:
    """The run before another one; what it did not measure is of the runs before that.

    Args:
        folder: of the memory.
        run: its id. A run that has no line yet is the newest one.
        models: whose measurements.

    Returns:
        The run before it in git's order, or by time; None for the first one.

    Raises:
        HistoryError: duckdb is missing, or the folder holds no line of the models.
    """
    memory = Memory(folder, models)
    at = next((i for i, one in enumerate(memory.runs) if one.id == run), len(memory.runs))
    figures: dict[Asked, dict[str, float]] = {}
    for before in reversed(memory.runs[max(0, at - _BACK) : at]):
        found: dict[Asked, dict[str, float]] = {}
        for *asked, name, value in memory.figures_of(before):
            found.setdefault((asked[0], asked[1], asked[2]), {})[name] = value
        figures = found | figures
    if not at:
        return None
    last = memory.runs[at - 1]
    return Earlier(last.label, last.time, last.commit, figures)


@dataclass(frozen=True)
class Course:
    """One figure over runs.

    Attributes:
        gate, subject, test, figure: what was measured.
        points: in git's order or by time.
        step: index of the first point after its last step; None where it has none.
    """

    gate: str
    subject: str
    test: str
    figure: str
    points: tuple[Point, ...]
    step: int | None


def courses(folder: Path, models: Sequence[str]) -> list[Course]:
    """What a report draws of models: the largest steps, then KL and tokens a second.

    Raises:
        HistoryError: duckdb is missing, or the folder holds no line of the models.
    """
    memory = Memory(folder, models)
    found = [turn.steps[0].series for turn in turns(memory)[:_MOST_STEPS]]
    for gate, figure in _DRAWN:
        found += [one for one in memory.series(figure, gate=gate) if ":" not in one.subject]
    return [_course(memory, one) for one in dict.fromkeys(found) if len(one.values) > 1]


def _course(memory: Memory, of: Series) -> Course:
    runs = (memory.runs[place] for place in of.runs)
    points = tuple(Point(r.label, r.time, v) for r, v in zip(runs, of.values, strict=True))
    changes = change_points(np.asarray(of.values))
    return Course(of.gate, of.subject, of.test, of.figure, points, changes[-1] if changes else None)
