"""What differs from the run before: verdicts that turned, limits, figures, and what was asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pytest_ane.gates.verdict import Cell, Figure
from pytest_ane.records.history import Earlier
from pytest_ane.report.figures import amount, limit_of
from pytest_ane.report.html.subjects import Judged, Subject
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Run, comparable
from pytest_ane.report.verdict import compact

_MOST = 30
"""Figures that are listed; shards have their own."""
_NAMED = 200
"""Characters of names of gates that one run alone asked."""
_Key: TypeAlias = tuple[str, str, str]
"""Gate, subject, and which test of several."""


@dataclass(frozen=True)
class Change:
    """A figure that differs; `size` as a share of its limit."""

    subject: str
    gate: str
    figure: str
    before: str
    after: str
    size: float
    worse: bool


@dataclass(frozen=True)
class Turn:
    """A verdict that is another one now."""

    subject: str
    gate: str
    before: str
    after: str


@dataclass(frozen=True)
class Changes:
    """All of it.

    Attributes:
        since: what the run before is called.
        turns: verdicts that turned, those that are red now first.
        asked: sentences on limits that differ, and on gates that one run alone asked.
        figures: with a limit, the worst first.
        more: how many figures are not listed.
    """

    since: str
    turns: tuple[Turn, ...]
    asked: tuple[str, ...]
    figures: tuple[Change, ...]
    more: int


def changes_of(run: Run, found: Sequence[Subject]) -> Changes | None:
    """What differs; None where no run before is known. The memory has no verdicts and no limits."""
    if run.earlier is None:
        return None
    judged = [one for subject in found for one in subject.judged if one.gate]
    figures = sorted(_figures(judged, run.earlier), key=lambda c: (not c.worse, -c.size))
    before = {_key(row): row for row in run.before.rows if row.gate} if run.before else {}
    pairs = [(before[_key(one.row)], one.row) for one in judged if _key(one.row) in before]
    turns = [
        Turn(now.subject, " ".join((now.gate, now.part)).strip(), then.label, now.label)
        for then, now in pairs
        if then.label != now.label
    ]
    asked = [*_limits(pairs), *_alone(before, judged), *_elsewhere(pairs)] if run.before else []
    red = {one.row.subject for one in judged if one.row.red}
    return Changes(
        run.earlier.label,
        tuple(sorted(turns, key=lambda turn: turn.subject not in red)),
        tuple(asked),
        tuple(figures[:_MOST]),
        max(0, len(figures) - _MOST),
    )


def before(earlier: Earlier | None, one: Judged) -> Mapping[str, Cell]:
    """Figures that the run before had of a gate and subject."""
    if earlier is None:
        return {}
    return earlier.figures.get(_key(one.row), {})


def _key(row: Row) -> _Key:
    return row.gate, row.subject, row.part


def _figures(judged: Sequence[Judged], earlier: Earlier) -> Iterator[Change]:
    for one in judged:
        then = before(earlier, one)
        for figure in one.verdict.figures if one.verdict else ():
            if figure.limit is not None and figure.name in then:
                yield from _change(one, figure, then[figure.name])


def _change(one: Judged, figure: Figure, then: Cell) -> Iterator[Change]:
    now = figure.value
    if isinstance(now, str) or isinstance(then, str) or then is None or figure.limit is None:
        return
    texts = amount(then, figure.unit), amount(now, figure.unit)
    if texts[0] == texts[1] and not (math.isnan(now) or math.isnan(then)):
        return
    size = abs(now - then) / (abs(figure.limit) or 1.0)
    worse = math.isnan(now) or (now < then if figure.good == "above" else now > then)
    yield Change(one.row.subject, one.gate, figure.label or figure.name, *texts, size, worse)


def _limits(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    """`fidelity cosine: limit 0.97 before, 0.9989 now, of 34 shards`."""
    seen: Counter[str] = Counter()
    for then, now in pairs:
        old = {f["name"]: f for f in _data(then)}
        for figure in _data(now):
            was = old.get(figure["name"], {}).get("limit")
            limit = figure.get("limit")
            # Limits that a measurement brings along move with it.
            if was != limit and was is not None and limit is not None:
                texts = (limit_of(x, figure.get("unit", "")) for x in (was, limit))
                name = figure.get("label") or figure["name"]
                seen["{} {}: limit {} before, {} now".format(now.gate, name, *texts)] += 1
    yield from (f"{text}{f', {count} times' if count > 1 else ''}" for text, count in seen.items())


def _elsewhere(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    """Verdicts whose figures are those of another backend, or times of another machine."""
    if count := sum(not comparable(now, then) for then, now in pairs if then.data and now.data):
        of = "1 verdict" if count == 1 else f"{count} verdicts"
        yield f"figures of {of} are not compared: another backend or machine measured them before"


def _data(row: Row) -> Sequence[Mapping[str, Any]]:
    return row.data["figures"] if row.data else ()


def _alone(then: Mapping[_Key, Row], now: Sequence[Judged]) -> Iterator[str]:
    keys = {_key(one.row) for one in now}
    for which, others in (("now", keys - then.keys()), ("before", then.keys() - keys)):
        if others:
            names = compact(sorted(f"{subject} {gate}" for gate, subject, _ in others))
            names = names if len(names) <= _NAMED else f"{names[:_NAMED]} ..."
            verdicts = "verdict" if len(others) == 1 else "verdicts"
            yield f"{len(others)} {verdicts} only {which}: {names}"
