"""Evidence of several systems, or chips, compared: in lines, and as data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from pytest_ane.gates.verdict import Cell, Column, Table, counted, some
from pytest_ane.manifest.ids import in_ranges
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.text import NAME, printable
from pytest_ane.records.compare import By, Comparison, Difference, FigureChange, Skipped
from pytest_ane.report.table import apart, table
from pytest_ane.report.verdict import reasons, row, to_json

_NAMED = 6
_SHOWN = 10
"""Rows of a table; the data has all."""
_WORD = {"os": "system", "chip": "chip"}


def lines(comparison: Comparison, width: int | None = None) -> Iterator[str]:
    """Each pair of systems, or chips, with what differs; then the files that are not compared."""
    by = comparison.by
    pairs = grouped(((d.old.name, d.new.name), d) for d in comparison.compared)
    for (old, new), group in pairs.items():
        subjects = _subjects(d.subject for d in group)
        yield f"{old} -> {new}: {counted(len(group), 'gate')} of {subjects} compared"
        if mixed := sorted({(d.old.machine, d.new.machine) for d in group if d.is_confounded}):
            what = _WORD["chip" if by == "os" else "os"]
            yield f"  the {what} differs too: {' -> '.join(mixed[0])}"
        made = (_verdicts(group), _moves(group), _figures(group))
        for each in (tables := [each for each in made if each.rows]):
            shown = replace(each, rows=each.rows[:_SHOWN])
            yield from (f"  {line}" for line in table(shown, width and width - 2))
            yield from _more(len(each.rows))
        if not tables:
            yield "  nothing differs"
    if unheld := comparison.unheld:
        yield f"not held against their packages, which are not built here: {_subjects(unheld)}"
    if comparison.skipped:
        yield f"not compared: {counted(len(comparison.skipped), 'file')}"
    for kind in sorted({one.kind for one in comparison.skipped}):
        said = [f"  {_reason(one, by)}" for one in comparison.skipped if one.kind == kind]
        yield from said[:_SHOWN]
        yield from _more(len(said))


def fault(comparison: Comparison) -> str:
    """The error where nothing could be compared, or gates pass on one side alone; else empty."""
    word = _WORD[comparison.by]
    if not comparison.compared:
        return (
            f"Nothing was compared: no two {word}s have evidence of the same bytes and the same "
            f"question; record it on another {word}, or name a folder that has it."
        )
    count = sum(d.is_red for d in comparison.compared)
    gates = "gate passes" if count == 1 else "gates pass"
    return f"{count} {gates} on one {word} and not on another." if count else ""


def data(comparison: Comparison) -> dict[str, Any]:
    """The same as JSON data, with every operation and figure that differs."""
    compared = [
        vars(d)
        | {which: {**vars(side), "verdict": to_json(side.verdict)}
           for which, side in (("old", d.old), ("new", d.new))}
        | {"red": d.is_red, "confounded": d.is_confounded}
        for d in comparison.compared
    ]  # fmt: skip
    skipped = [
        {"file": one.file, "kind": one.kind, "reason": _reason(one, comparison.by)}
        for one in comparison.skipped
    ]
    about = {"by": comparison.by, "not_held": list(comparison.unheld)}
    return {**about, "compared": compared, "not_compared": skipped}


def _more(count: int) -> Iterator[str]:
    if count > _SHOWN:
        yield f"  ... and {count - _SHOWN} more; --json has all"


def _table(title: str, heads: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> Table:
    return Table(title, tuple(map(Column, heads)), tuple(rows))


def _verdicts(differences: Sequence[Difference]) -> Table:
    groups: dict[tuple[str, ...], list[str]] = {}
    for d in sorted(differences, key=lambda d: not d.is_red):
        old, new = d.old.verdict, d.new.verdict
        if old.status != new.status:
            # The first reason of the side that does not pass, the new one first.
            told = new if new.status != "passed" else old
            why = (reasons(told) or [row(told)])[0]
            groups.setdefault((d.gate, old.status, new.status, why), []).append(d.subject)
    rows = ((_subjects(names), *key) for key, names in groups.items())
    return _table("verdicts that differ", ("subject", "gate", "was", "is", "why"), rows)


def _moves(differences: Sequence[Difference]) -> Table:
    """Operations by type and devices; shards with the same ones share a row, the worst first."""
    groups: dict[tuple[tuple[str, str, str], tuple[str, ...]], list[str]] = {}
    totals = Counter({d.subject: len(d.moves) for d in differences if d.moves})
    kind = attrgetter("op", "old", "new")
    for d in differences:
        for each in sorted(set(map(kind, d.moves))):
            alike = tuple(dict.fromkeys(m.name or m.op for m in d.moves if kind(m) == each))
            groups.setdefault((each, alike), []).append(d.subject)
    ordered = sorted(groups.items(), key=lambda item: -max(totals[subject] for subject in item[1]))
    rows: list[tuple[Cell, ...]] = []
    for ((op, then, now), names), subjects in ordered:
        shown = some((printable(name, NAME) for name in names), _NAMED)
        rows.append((_subjects(subjects), len(names), op, f"{then} -> {now}", shown))
    title = f"{counted(sum(totals.values()), 'operation')} that moved"
    return _table(title, ("subject", "each", "type", "moved", "names"), rows)


def _figures(differences: Sequence[Difference]) -> Table:
    changes = [(d, change) for d in differences if not d.moves for change in d.figures]
    changes.sort(key=lambda pair: -_times_noise(pair[1]))
    rows: list[tuple[Cell, ...]] = []
    for d, change in changes:
        texts = apart(change.old, change.new, change.unit)
        noise = f"{change.noise:.2g}" if change.noise else ""
        rows.append((d.subject, d.gate, change.name, *texts, noise))
    return _table("figures that moved", ("subject", "gate", "figure", "was", "is", "noise"), rows)


def _times_noise(change: FigureChange) -> float:
    old, new = change.old, change.new
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not change.noise:
        return math.inf
    return abs(old - new) / change.noise


def _subjects(names: Iterable[str]) -> str:
    """Shards in a row as a selection has them, the first ten: `m:L00-L29, m:head.0`."""
    distinct = dict.fromkeys(names)
    shards = [name for name in distinct if ":" in name]
    return some((*in_ranges(shards), *(name for name in distinct if ":" not in name)), _SHOWN)


def _reason(one: Skipped, by: By) -> str:
    """A sentence without a full stop: the file, and why it is not compared."""
    word = _WORD[by]
    says = {
        "unused": "no shard of the manifest uses it",
        "copy": "is the same record as one that is compared",
        "bytes": f"is of other bytes than the evidence of any other {word}",
        "question": f"answers another question than that of any other {word}: {one.detail} differs",
        "units": f"was recorded with {one.detail}, and that of any other {word} was not",
        "alone": f"is of {one.detail}, and no other {word} has evidence to compare it with",
    }
    return f"{one.file}: {says[one.kind]}" if one.kind in says else one.detail
