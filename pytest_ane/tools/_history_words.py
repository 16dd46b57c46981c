"""What the memory of many runs tells, in lines: an overview, a figure's course, a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_ane.report.table import columns

if TYPE_CHECKING:
    from pytest_ane.records.history import Comparison, Judged
    from pytest_ane.records.memory import Memory, Run, Series, Skipped
    from pytest_ane.records.steps import ModelSummary, Turn

SHOWN = 12
"""Steps, or differences, that a table has; --json has all."""
_BAR = 20
_SKIPPED = 3
_FACTS = {"os": "system", "compute_units": "compute units"}


def skipped(lines: Sequence[Skipped]) -> Iterator[str]:
    """A note on lines that were not read, with the first ones by name."""
    if lines:
        named = ", ".join(map(str, lines[:_SKIPPED]))
        more = f" and {len(lines) - _SKIPPED:,} more" if len(lines) > _SKIPPED else ""
        yield f"note: {_count(len(lines), 'line')} skipped: {named}{more}"


def unordered(runs: Sequence[Run]) -> Iterator[str]:
    """A note on runs whose commits git does not know, where it knows others."""
    lost = [run for run in runs if run.commit and not run.known]
    if lost and len(lost) < len(runs):
        yield (
            f"note: git does not know the commits of {_count(len(lost), 'run')}, which stand by "
            f"time: {lost[0].label}{' and others' if len(lost) > 1 else ''}"
        )


def overview(models: Sequence[ModelSummary], turns: Sequence[Turn]) -> Iterator[str]:
    """A table of models, and the steps."""
    heads = ("model", "lines", "runs", "commits", "first", "last", "machines")
    rows = [
        (m.model, f"{m.lines:,}", f"{m.runs:,}", f"{m.commits:,}", m.first[:10], m.last[:10],
         "; ".join(m.machines))
        for m in models
    ]  # fmt: skip
    words = [True, False, False, False, True, True, True]
    yield from columns([heads, *rows], words=words)
    yield ""
    if not turns:
        yield "no figure stepped"
        return
    yield "steps, the largest first:"
    yield from columns([_HEADS, *map(_turn, turns[:SHOWN])], words=len(_HEADS))
    if len(turns) > SHOWN:
        yield f"and {len(turns) - SHOWN:,} more, which --json lists"


_HEADS = ("commit", "subject", "gate", "figure", "before -> after", "since")


def _turn(turn: Turn) -> tuple[str, ...]:
    step = turn.steps[0]
    more = f" and {_count(len(turn.steps) - 1, 'more figure')}" if len(turn.steps) > 1 else ""
    others = ", ".join(f"another {word}" for word in turn.changed)
    values = f"{number(step.before)} -> {number(step.after)}"
    why = "; ".join(filter(None, (turn.title[:60], others)))
    return (turn.run.label, turn.subject, test(step.series.gate, step.series.test),
            f"{step.series.figure}{more}", values, why)  # fmt: skip


def course(memory: Memory, series: Series, turns: Sequence[Turn]) -> Iterator[str]:
    """One figure over runs, with bars from its least to its greatest value, and its steps."""
    finite = [value for value in series.values if math.isfinite(value)]
    least, greatest = min(finite, default=0.0), max(finite, default=0.0)
    steps = {step.series.ids[step.at]: (turn, step) for turn in turns for step in turn.steps}
    on = f" on {series.backend}" if series.backend else ""
    yield f"{series.subject} {test(series.gate, series.test)} {series.figure}{on}:"
    rows = []
    for id_, place, value in zip(series.ids, series.runs, series.values, strict=True):
        run, note = memory.runs[place], ""
        if id_ in steps:
            turn, step = steps[id_]
            others = "".join(f"; another {word}" for word in turn.changed)
            note = f"stepped: {number(step.before)} -> {number(step.after)}{others}"
        title = memory.commits.titles.get(run.commit, "")[:40]
        bar = _bar(value, least, greatest)
        rows.append((run.label, run.time[:16], number(value), bar, note or title))
    heads = ("commit", "time", "value", f"{number(least)} to {number(greatest)}", "")
    yield from columns([heads, *rows], words=[True, True, False, True, True])


def _bar(value: float, least: float, greatest: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf"
    share = (value - least) / (greatest - least) if greatest > least else 1.0
    return "#" * max(round(_BAR * share), 1)


def comparison(found: Comparison) -> Iterator[str]:
    """What two sides differ in."""
    left, right = found.sides
    yield f"{left} against {right}"
    for name, before, after in found.facts:
        yield f"  {_FACTS.get(name, name)}: {before} -> {after}"
    for count, what in ((found.packages, "package"), (found.questions, "question")):
        if count:
            yield f"  another {what} in {_count(count, 'measurement')}"
    for one, other, count in found.apart:
        yield (
            f"  not compared: {_count(count, 'measurement')}, by the backend {one} and by {other}; "
            "numbers of different backends say nothing about each other"
        )
    for count, side in zip(found.only, found.sides, strict=True):
        if count:
            yield f"  only in {side}: {_count(count, 'measurement')}"
    yield ""
    if not found.differences:
        yield f"no figure differs, of {found.same:,}"
        return
    heads = ("subject", "gate", "figure", left, right)
    rows = [
        (d.subject, test(d.gate, d.test), d.figure, number(d.before), number(d.after))
        for d in found.differences[:SHOWN]
    ]
    yield from columns([heads, *rows], words=len(heads))
    total = len(found.differences)
    more = f" ({total - SHOWN:,} more, which --json lists)" if total > SHOWN else ""
    yield f"{_count(total, 'figure')} of {total + found.same:,} differ{more}"


def judged(found: Judged) -> Iterator[str]:
    """Since when today's policy would have been red, and what it cannot tell."""
    still = [red for red in found.red if red.until is None]
    if found.red:
        heads = ("red since", "until", "subject", "gate", "figure", "value", "limit")
        rows = [
            (red.since.label, red.until.label if red.until else "now", red.series.subject,
             test(red.series.gate, red.series.test), red.series.figure, number(red.value),
             f"{'>=' if red.bound.good == 'above' else '<='} {number(red.bound.limit)}")
            for red in found.red
        ]  # fmt: skip
        yield from columns([heads, *rows], words=[True] * 5 + [False, True])
        yield ""
    count = _count(found.figures, "figure")
    yield f"by today's policy {len(still)} of {count} would be red now"
    if found.silent:
        yield f"no limit on a figure: {', '.join(found.silent)}"
    if found.subjects:
        yield f"not in the manifest, so not judged: {', '.join(found.subjects)}"
    yield (
        "not judged: what a gate finds without a figure, and limits that depend on the "
        "measurement itself, such as of the total error"
    )


def number(value: float | str) -> str:
    """Six digits; a text as it is."""
    return value if isinstance(value, str) else f"{value:.6g}"


def test(gate: str, name: str) -> str:
    """A gate, and which of its tests: `throughput call[T1]`."""
    return f"{gate} {name}".rstrip()


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
