"""What the page shows of each shard and model: cells of its gates, tables, and small pictures.

Pictures are data that templates draw: bars, strips, marked text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from pytest_ane.gates.verdict import Bound, Cell, Column, Figure, Table, Verdict, counted, some
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.records.history import Asked, Earlier
from pytest_ane.report.run import Row, Run, comparable, ranked, verdict_of
from pytest_ane.report.table import amount, cell, head, limit_of
from pytest_ane.report.terminal import cause_of

_SHARES = (0.05, 0.15, 0.35, 0.6)
"""Where the next shade begins, as a share of the way from the limit to the best value."""
_FAR = 1e15
"""As much as infinite to a browser that sorts."""


@dataclass(frozen=True)
class Judged:
    """A row, and its verdict if it came to one."""

    row: Row
    verdict: Verdict | None

    @cached_property
    def deciding(self) -> Figure | None:
        """The figure furthest beyond its limit; else, of those in its row, the closest to it."""
        limited = [f for f in self.verdict.figures if f.limit is not None] if self.verdict else []
        named = [f for f in limited if not f.passes] or [f for f in limited if f.shown]
        return min(named or limited, key=_room, default=None)

    @property
    def order(self) -> str:
        """By what its column sorts: `room`, where nothing has a limit the first figure."""
        if (figure := self.shown) is None:
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
        return len(_SHARES) if math.isnan(room) else sum(room >= share for share in _SHARES)

    @property
    def shown(self) -> Figure | None:
        """The figure of its cell: `deciding`; if it passed without limits, the first number."""
        passed = self.verdict if self.row.status == "passed" else None
        numbers = (f for f in passed.figures if not isinstance(f.value, str)) if passed else ()
        return self.deciding or next((f for f in numbers if f.shown), None)

    @property
    def answer(self) -> Figure | None:
        """What answers in words, such as `on the ANE`."""
        return self.verdict.figure("answer") if self.verdict else None

    @property
    def brief(self) -> str:
        """What answers in words, or the value of `shown`, or the status."""
        figure = self.shown
        if (answer := self.answer) is not None:
            return str(answer.value)
        if figure is None:
            return self.row.label
        if figure.of is not None:
            return f"{figure.value:,} of {figure.of:,.0f} {figure.unit.partition(' ')[0]}"
        return amount(figure.value, figure.unit)


@dataclass(frozen=True)
class Subject:
    """A shard or model, or the id of a test that broke down, with its gates, the worst first."""

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
        asked = (one for one in self.judged if (one.row.gate, one.row.part) == (gate, part))
        return next(asked, None)

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
    rows = grouped((row.subject, row) for row in ranked(run.rows))
    made = [
        Subject(name, of[0].marks, tuple(Judged(row, verdict_of(row.data)) for row in of))
        for name, of in rows.items()
    ]
    return sorted(made, key=_place)


def reds(found: Iterable[Subject]) -> list[list[tuple[Subject, Judged]]]:
    """What is red, shards that have one cause together, in the order of the first."""
    groups: dict[str, dict[str, tuple[Subject, Judged]]] = {}
    for subject in found:
        for one in (one for one in subject.judged if one.row.red):
            groups.setdefault(cause_of(one.row), {}).setdefault(subject.name, (subject, one))
    return [[*of.values()] for of in groups.values()]


def gates(found: Iterable[Subject]) -> list[tuple[str, str]]:
    """The gates that spoke, and parts of those with several tests: a column each."""
    judged = (one for subject in found for one in subject.judged)
    return sorted({(one.row.gate, one.row.part) for one in judged if one.row.gate})


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


_UNITS = {"ANE": "ane", "CPU": "cpu", "GPU": "gpu", "eligible": "ane", "likely CPU": "cpu",
          "ineligible": "off", "none": "off"}  # fmt: skip
_LEAST_ERROR, _MOST_ERROR = 1e-6, 1.0
"""Relative errors that an operation's bar has no and its full height for."""
MOST_ROWS = 400
"""Rows of a table that the page holds; the JSON has them all."""


class Shown(NamedTuple):
    """A cell as it is drawn; `bar` is its share of the longest bar in per cent, None for none."""

    text: str
    bar: float | None = None
    beyond: bool = False
    number: bool = False


class Grid(NamedTuple):
    """A table as it is drawn; `more` counts rows that are left out."""

    title: str
    name: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Shown, ...], ...]
    more: int = 0


def grid(table: Table) -> Grid:
    """Any table; bars are scaled to the largest of all, and columns without a value left out."""
    is_kept = [any(value not in (None, "") for value in of) for of in zip(*table.rows, strict=True)]
    kept = [(i, column) for i, column in enumerate(table.columns) if is_kept and is_kept[i]]
    # Bins of a histogram are for the records: they are too many for a page.
    kept = [(i, column) for i, column in kept if not column.title.startswith("bin ")]
    bars = [i for i, column in kept if column.bar]
    largest = max((_finite(row[i]) for row in table.rows for i in bars), default=0.0)
    shown = table.rows[:MOST_ROWS]
    rows = tuple(tuple(_shown(row[i], column, largest) for i, column in kept) for row in shown)
    heads = tuple(head(column) for _, column in kept)
    return Grid(table.title, table.name, heads, rows, len(table.rows) - len(rows))


class Op(NamedTuple):
    """An operation in the strip of its program.

    `unit` colours it: `ane`, `cpu`, `gpu`, `off` or empty; `where` says how that is known. `error`
    is what it adds itself, `height` of its bar in per cent, logarithmic.
    """

    name: str
    kind: str
    unit: str
    where: str
    error: str | None
    height: float
    hazards: str
    why: str


def strip(subject: Subject) -> list[Op]:
    """All compute operations in their order, joined by name with blame and hazards."""
    blamed = subject.records("blame.operations")
    errors, hazards = {row["op"]: row["own error"] for row in blamed}, _hazards(subject)
    made = []
    for row in subject.records("program"):
        name, error = str(row["op"]), errors.get(row["op"])
        unit, where = _unit(row["forecast"], row["predicted"], row["recorded"])
        added = _short(error) if isinstance(error, int | float) else None
        hazard, why = hazards.get(name, ""), str(row["why"] or "")
        made.append(Op(name, str(row["type"]), unit, where, added, _height(error), hazard, why))
    return made


def _unit(forecast: Cell, predicted: Cell, recorded: Cell) -> tuple[str, str]:
    known = (("recorded", recorded), ("predicted", predicted), ("forecast", forecast))
    for how, value in known:
        if value:
            said = [f"{h} {v}" for h, v in known if v]
            off = how == "predicted" and forecast == "ineligible"
            return ("off" if off else _UNITS.get(str(value), "")), ", ".join(said)
    return "", "undecided"


def _hazards(subject: Subject) -> dict[str, str]:
    near: dict[str, list[str]] = {}
    for row in subject.records("hazards"):
        value, limit = row["value"], row["limit"]
        if isinstance(value, str | None) or isinstance(limit, str | None):
            continue
        if not value <= limit / 2:
            text = f"{row['hazard']} {_short(value)} of {_short(limit)}"
            near.setdefault(str(row["operation"]), []).append(text)
    return {op: "; ".join(texts) for op, texts in near.items()}


def _height(error: Cell) -> float:
    if not isinstance(error, int | float):
        return 0.0
    if math.isnan(error):
        return 100.0
    span = math.log(_MOST_ERROR / _LEAST_ERROR)
    share = math.log(max(error, _LEAST_ERROR) / _LEAST_ERROR) / span
    return round(100 * min(share, 1.0), 1)


class Token(NamedTuple):
    """A token of a prompt, marked by its KL: 0 to 4, and whether it is bad by the policy."""

    text: str
    level: int
    bad: bool
    first: bool
    says: str


def prompts(rows: Iterable[Mapping[str, Cell]]) -> dict[str, list[Token]]:
    """Tokens by prompt, of the table `positions`; the first bad one is marked as such."""
    made = {}
    for name, of in groupby(rows, key=lambda row: row["prompt"]):
        seen, tokens = False, []
        for row in of:
            kl, bad = row["KL"], row["bad"] == "yes"
            agrees = ", another token" if row["top-1"] == "no" else ""
            says = f"position {row['position']}: KL {amount(kl, 'nats')}{agrees}"
            level = sum(_finite(kl, math.inf) > edge for edge in (0.01, 0.03, 0.1, 0.3))
            tokens.append(Token(str(row["text"] or ""), level, bad, bad and not seen, says))
            seen = seen or bad
        made[str(name)] = tokens
    return made


def _shown(value: Cell, column: Column, largest: float) -> Shown:
    text = cell(value, column)
    if isinstance(value, str) or value is None:
        return Shown(text)
    bound = None if column.limit is None else Bound(column.limit, column.good or "below")
    beyond = bound is not None and not bound.passes(value)
    bar = round(100 * _finite(value) / largest, 1) if column.bar and largest > 0 else None
    return Shown(text, bar, beyond, number=True)


def _finite(value: Cell, otherwise: float = 0.0) -> float:
    if isinstance(value, str) or value is None or not math.isfinite(value):
        return otherwise
    return float(value)


def _short(value: float) -> str:
    text = f"{value:.3g}" if math.isfinite(value) else amount(value)
    return str(value) if isinstance(value, int) else text


# What differs from the run before: verdicts that turned, limits, figures.

_MOST = 30
"""Figures that are listed; shards have their own."""
_NAMED = 6
"""Gates that one run alone asked; of more the number."""


class Change(NamedTuple):
    """A figure that differs; `size` as a share of its limit."""

    subject: str
    gate: str
    figure: str
    before: str
    after: str
    size: float
    worse: bool


def turns_of(run: Run) -> list[tuple[Row, Row]]:
    """Verdicts of the run before, where it is at hand, beside those of now."""
    then = {row.asked: row for row in run.before.rows if row.gate} if run.before else {}
    return [(then[row.asked], row) for row in run.rows if row.gate and row.asked in then]


def changes_of(run: Run, found: Sequence[Subject]) -> dict[str, Any]:
    """What differs; empty where no run before is known. The memory has no verdicts and no limits.

    `turns` are verdicts that turned, those that are red now first; `asked` sentences on limits that
    differ and gates that one run alone asked; `figures` those with a limit, the worst first.
    """
    if run.earlier is None:
        return {}
    judged = [one for subject in found for one in subject.judged if one.row.gate]
    figures = sorted(_figures(judged, run.earlier), key=lambda c: (not c.worse, -c.size))
    pairs = turns_of(run)
    before = {row.asked for row in run.before.rows if row.gate} if run.before else set()
    turns = [
        {"subject": now.subject, "gate": f"{now.gate} {now.part}".strip(),
         "before": then.label, "after": now.label}
        for then, now in pairs if then.label != now.label
    ]  # fmt: skip
    asked = [*_limits(pairs), *_alone(before, judged), *_elsewhere(pairs)] if run.before else []
    red = {one.row.subject for one in judged if one.row.red}
    return {
        "since": run.earlier.label,
        "turns": sorted(turns, key=lambda turn: turn["subject"] not in red),
        "asked": asked,
        "figures": figures[:_MOST],
        "more": max(0, len(figures) - _MOST),
    }


def before(earlier: Earlier | None, one: Judged) -> Mapping[str, Cell]:
    """Figures that the run before had of a gate and subject."""
    return earlier.figures.get(one.row.asked, {}) if earlier else {}


def _figures(judged: Sequence[Judged], earlier: Earlier) -> Iterator[Change]:
    for one in judged:
        known = before(earlier, one)
        for figure in one.verdict.figures if one.verdict else ():
            now, then = figure.value, known.get(figure.name)
            if figure.limit is None or isinstance(now, str) or isinstance(then, str | None):
                continue
            texts = amount(then, figure.unit), amount(now, figure.unit)
            if texts[0] == texts[1] and not (math.isnan(now) or math.isnan(then)):
                continue
            name, size = figure.label or figure.name, abs(now - then) / (abs(figure.limit) or 1.0)
            worse = math.isnan(now) or (now < then if figure.good == "above" else now > then)
            yield Change(one.row.subject, one.row.gate, name, *texts, size, worse)


def _limits(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for then, now in pairs:
        old = {f["name"]: f for f in (then.data or {}).get("figures", ())}
        for figure in (now.data or {}).get("figures", ()):
            was = old.get(figure["name"], {}).get("limit")
            limit = figure.get("limit")
            # Limits that a measurement brings along move with it.
            if was != limit and was is not None and limit is not None:
                texts = (limit_of(x, figure.get("unit", "")) for x in (was, limit))
                name = figure.get("label") or figure["name"]
                seen["{} {}: limit {} before, {} now".format(now.gate, name, *texts)] += 1
    yield from (f"{text}{f', {count} times' if count > 1 else ''}" for text, count in seen.items())


def _elsewhere(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    if count := sum(not comparable(now, then) for then, now in pairs if then.data and now.data):
        of = counted(count, "verdict")
        yield f"figures of {of} are not compared: another backend or machine measured them before"


def _alone(then: set[Asked], judged: Sequence[Judged]) -> Iterator[str]:
    now = {one.row.asked for one in judged}
    for which, others in (("now", now - then), ("before", then - now)):
        if others:
            names = some(sorted(f"{subject} {gate}" for gate, subject, _ in others), _NAMED)
            yield f"{counted(len(others), 'verdict')} only {which}: {names}"
