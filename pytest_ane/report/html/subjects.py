"""What the page shows of each shard and model: its gates' verdicts, and a cell for each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pytest_ane.gates.verdict import Cell, Figure, Table, Verdict
from pytest_ane.report.figures import amount
from pytest_ane.report.rows import Row, ranked
from pytest_ane.report.run import Run, verdict_of

LEVELS = 5
"""Shades of a passed cell, from 0 at the limit to 4 far from it."""
_SHARES = (0.05, 0.15, 0.35, 0.6)
"""Where the next shade begins, as a share of the way from the limit to the best value."""
_FAR = 1e15
"""As much as infinite to a browser that sorts."""


@dataclass(frozen=True)
class Judged:
    """A row, and its verdict if it came to one."""

    row: Row
    verdict: Verdict | None

    @property
    def gate(self) -> str:
        """Name of the gate."""
        return self.row.gate

    @cached_property
    def deciding(self) -> Figure | None:
        """The figure furthest beyond its limit; else, of those in its row, the closest to it."""
        limited = [f for f in self.verdict.figures if f.limit is not None] if self.verdict else []
        named = [f for f in limited if not f.passes] or [f for f in limited if f.shown]
        return min(named or limited, key=_room, default=None)

    @property
    def first(self) -> Figure | None:
        """The first number that the verdict's one line shows."""
        figures = self.verdict.figures if self.verdict else ()
        return next((f for f in figures if f.shown and not isinstance(f.value, str)), None)

    @property
    def order(self) -> str:
        """By what its column sorts: `room`, where nothing has a limit the first figure."""
        figure = self.shown
        if figure is None:
            return ""
        value = self.room if self.deciding else float(figure.value)
        return f"{min(max(value, -_FAR), _FAR):.6g}"

    @property
    def room(self) -> float:
        """Of `deciding`: 0 at its limit, 1 far from it, below 0 beyond it; NaN without one."""
        return _room(self.deciding) if self.deciding else math.nan

    @property
    def level(self) -> int:
        """Its shade."""
        room = self.room
        return LEVELS - 1 if math.isnan(room) else sum(room >= share for share in _SHARES)

    @property
    def shown(self) -> Figure | None:
        """The figure of its cell: `deciding`; if it passed without limits, the first number."""
        return self.deciding or (self.first if self.row.status == "passed" else None)

    @property
    def name_of_shown(self) -> str:
        """What that figure is called, in few characters."""
        return self.shown.label if self.shown else ""

    @property
    def brief(self) -> str:
        """The value of `shown`, or the status."""
        figure = self.shown
        if figure is None:
            return self.row.label
        if figure.of is not None:
            return f"{figure.value:,} of {figure.of:,.0f} {figure.unit.partition(' ')[0]}"
        return amount(figure.value, figure.unit)


@dataclass(frozen=True)
class Subject:
    """A shard or a model, with all that gates say of it.

    Attributes:
        name: qualified shard id, model's name, or the id of a test that broke down.
        judged: the worst first.
    """

    name: str
    marks: tuple[str, ...]
    judged: tuple[Judged, ...]

    @property
    def worst(self) -> Judged:
        """What decides its place in the matrix."""
        return self.judged[0]

    @property
    def red(self) -> bool:
        """Whether it fails the run."""
        return any(one.row.red for one in self.judged)

    @property
    def status(self) -> str:
        """The worst status, `warned` among them."""
        return self.worst.row.label

    @property
    def room(self) -> float:
        """The least room of its gates."""
        return min((one.room for one in self.judged if not math.isnan(one.room)), default=1.0)

    def of(self, gate: str, part: str = "") -> Judged | None:
        """What one gate, or one test of several of a gate, says; the worst if it is repeated."""
        asked = (gate, part)
        return next((one for one in self.judged if (one.gate, one.row.part) == asked), None)

    def table(self, name: str) -> Table | None:
        """A table of whichever gate has it."""
        verdicts = (one.verdict for one in self.judged if one.verdict)
        return next((found for verdict in verdicts if (found := verdict.table(name))), None)

    def records(self, name: str) -> list[dict[str, Cell]]:
        """Its rows as cells by title; none where no gate has it."""
        found = self.table(name)
        return found.records if found else []


def _place(subject: Subject) -> tuple[bool, bool, bool, float]:
    """What is red comes first; a red shard before its model, which is red for it."""
    model = ":" not in subject.name
    return not subject.red, subject.status == "passed", model == subject.red, subject.room


def subjects(run: Run) -> list[Subject]:
    """All subjects of a run, the worst first."""
    rows: dict[str, list[Row]] = {}
    for row in ranked(run.rows):
        rows.setdefault(row.subject, []).append(row)
    made = [
        Subject(name, of[0].marks, tuple(Judged(row, verdict_of(row.data)) for row in of))
        for name, of in rows.items()
    ]
    return sorted(made, key=_place)


def gates(found: Iterable[Subject]) -> list[tuple[str, str]]:
    """The gates that spoke, and parts of those with several tests: a column each."""
    judged = (one for subject in found for one in subject.judged)
    return sorted({(one.gate, one.row.part) for one in judged if one.gate})


def _room(figure: Figure) -> float:
    """The share of the way from the limit to the best value: 1 for shares, else twice the limit."""
    value, limit = figure.value, figure.limit
    if limit is None or isinstance(value, str):
        return math.inf
    if math.isnan(value):
        return -math.inf
    best = 1.0 if figure.good == "above" and 0 < limit < 1 else 0.0
    way = abs(best - limit) or 1.0
    return (value - limit if figure.good == "above" else limit - value) / way
