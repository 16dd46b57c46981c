"""What a report shows of earlier runs: the figures of the last one, and a figure's course."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pytest_ane.gates.words import TIMED
from pytest_ane.history.memory import Memory, Series
from pytest_ane.history.order import Run
from pytest_ane.history.overview import turns
from pytest_ane.history.steps import steps_of

Asked: TypeAlias = tuple[str, str, str]
"""A gate, its subject and the test, which is empty where a gate has one."""


class Place(NamedTuple):
    """Where figures come from, as far as those of another place say nothing about them.

    Attributes:
        backend: `cpu` or `coreml`; empty where nothing was run, or nobody knows.
        machine: of a benchmark; empty for gates whose figures any machine repeats.
    """

    backend: str
    machine: str

    @classmethod
    def of(cls, gate: str, facts: Mapping[str, str]) -> Place:
        """By a line's facts: `backend`, `machine`, `chip`, `compute_units`."""
        names = ("machine", "chip", "compute_units")
        machine = "|".join(facts.get(name) or "" for name in names) if gate in TIMED else ""
        return cls(facts.get("backend") or "", machine)

    def compares(self, other: Place) -> bool:
        """Whether figures of both may be compared."""
        same = not self.backend or not other.backend or self.backend == other.backend
        return same and self.machine == other.machine


@dataclass(frozen=True)
class Earlier:
    """What a run measured, as far as it may be compared.

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


def last_before(memory: Memory, run: str, places: Mapping[Asked, Place]) -> Earlier | None:
    """The run before another one; what it did not measure is of the runs before that.

    Args:
        memory: what is asked.
        run: its id. A run that has no line yet is the newest one.
        places: what it measured, and where.

    Returns:
        The last run before it, in git's order or by time, that may be compared; None without one.
    """
    at = next((i for i, one in enumerate(memory.runs) if one.id == run), len(memory.runs))
    figures: dict[Asked, dict[str, float]] = {}
    last: Run | None = None
    for before in reversed(memory.runs[max(0, at - _BACK) : at]):
        found: dict[Asked, dict[str, float]] = {}
        for gate, subject, test, facts, name, value in memory.figures_of(before):
            here = places.get(asked := (gate, subject, test))
            if here is not None and here.compares(Place.of(gate, facts)):
                found.setdefault(asked, {})[name] = value
        figures = found | figures
        last = last or (before if found else None)
    return Earlier(last.label, last.time, last.commit, figures) if last else None


@dataclass(frozen=True)
class Course:
    """One figure over runs.

    Attributes:
        gate, subject, test, figure: what was measured.
        backend: what computed it; empty where nothing was run.
        points: in git's order or by time.
        step: index of the first point after its last step; None where it has none.
    """

    gate: str
    subject: str
    test: str
    figure: str
    backend: str
    points: tuple[Point, ...]
    step: int | None


def courses(memory: Memory) -> list[Course]:
    """What a report draws: the largest steps, then KL and tokens a second."""
    found = [turn.steps[0].series for turn in turns(memory)[:_MOST_STEPS]]
    for gate, figure in _DRAWN:
        found += [one for one in memory.series(figure, gate=gate) if ":" not in one.subject]
    return [_course(memory, one) for one in dict.fromkeys(found) if len(one.values) > 1]


def _course(memory: Memory, of: Series) -> Course:
    runs = (memory.runs[place] for place in of.runs)
    points = tuple(Point(r.label, r.time, v) for r, v in zip(runs, of.values, strict=True))
    steps = steps_of(of)
    step = steps[-1].at if steps else None
    return Course(of.gate, of.subject, of.test, of.figure, of.backend, points, step)
