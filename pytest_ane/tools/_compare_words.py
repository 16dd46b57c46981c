"""Evidence of several systems, or chips, compared: in lines, and as data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from pytest_ane.gates.verdict import Cell, Column, Table, some
from pytest_ane.mlprogram.text import NAME, printable
from pytest_ane.records.compare import By, Comparison, Difference, FigureChange, Side, Skipped
from pytest_ane.report.figures import amount
from pytest_ane.report.table import table
from pytest_ane.report.verdict import reasons, row

_NAMED = 6
_SHOWN = 10
"""Rows of a table; the data has all."""
_WORD = {"os": "system", "chip": "chip"}
_MOST_DIGITS = 8


def lines(comparison: Comparison, width: int | None = None) -> Iterator[str]:
    """Each pair of systems, or chips, with what differs; then the files that are not compared."""
    by = comparison.by
    pairs: dict[tuple[str, str], list[Difference]] = {}
    for difference in comparison.compared:
        pairs.setdefault((difference.old.name, difference.new.name), []).append(difference)
    for differences in pairs.values():
        yield from _pair(differences, by, width)
    if unheld := comparison.unheld:
        yield f"not held against their packages, which are not built here: {_subjects(unheld)}"
    if comparison.skipped:
        count = len(comparison.skipped)
        yield f"not compared: {count} file{'' if count == 1 else 's'}"
    kinds = dict.fromkeys(one.kind for one in comparison.skipped)
    for kind in sorted(kinds):
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
        | {"old": _side(d.old), "new": _side(d.new)}
        | {"red": d.is_red, "confounded": d.is_confounded}
        for d in comparison.compared
    ]
    skipped = [
        {"file": one.file, "kind": one.kind, "reason": _reason(one, comparison.by)}
        for one in comparison.skipped
    ]
    about = {"by": comparison.by, "not_held": list(comparison.unheld)}
    return {**about, "compared": compared, "not_compared": skipped}


def _side(side: Side) -> dict[str, Any]:
    verdict = side.verdict
    words = {"status": verdict.status, "summary": row(verdict), "reasons": reasons(verdict)}
    return {**vars(side), "verdict": words}


def _pair(differences: Sequence[Difference], by: By, width: int | None) -> Iterator[str]:
    """Verdicts, operations and figures that differ between two systems, or chips."""
    old, new = differences[0].old.name, differences[0].new.name
    gates = f"{len(differences)} gate{'' if len(differences) == 1 else 's'}"
    yield f"{old} -> {new}: {gates} of {_subjects(d.subject for d in differences)} compared"
    if mixed := sorted({(d.old.machine, d.new.machine) for d in differences if d.is_confounded}):
        what = _WORD["chip" if by == "os" else "os"]
        yield f"  the {what} differs too: {' -> '.join(mixed[0])}"
    tables = (_verdicts(differences), _moves(differences), _figures(differences))
    for found in filter(None, tables):
        shown = Table(found.title, found.columns, found.rows[:_SHOWN])
        yield from (f"  {line}" for line in table(shown, width and width - 2))
        yield from _more(len(found.rows))
    if not any(tables):
        yield "  nothing differs"


def _more(count: int) -> Iterator[str]:
    """How many rows are left out, if any are."""
    if count > _SHOWN:
        yield f"  ... and {count - _SHOWN} more; --json has all"


def _verdicts(differences: Sequence[Difference]) -> Table | None:
    """Gates by what became of them; shards with the same reason share a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    changed = [d for d in differences if d.old.verdict.status != d.new.verdict.status]
    for d in sorted(changed, key=lambda d: not d.is_red):
        key = (d.gate, d.old.verdict.status, d.new.verdict.status, _why(d))
        groups.setdefault(key, []).append(d.subject)
    rows = [(_subjects(subjects), *key) for key, subjects in groups.items()]
    return _table("verdicts that differ", ("subject", "gate", "was", "is", "why"), rows)


def _table(title: str, heads: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table | None:
    return Table(title, tuple(map(Column, heads)), tuple(rows)) if rows else None


def _why(difference: Difference) -> str:
    """The first reason of the side that does not pass, the new one first."""
    for side in (difference.new, difference.old):
        if side.verdict.status != "passed":
            return (reasons(side.verdict) or [row(side.verdict)])[0]
    return ""


def _moves(differences: Sequence[Difference]) -> Table | None:
    """Operations by type and devices; shards with the same ones share a row, the worst first."""
    groups: dict[tuple[tuple[str, str, str], tuple[str, ...]], list[str]] = {}
    totals = Counter({d.subject: len(d.moves) for d in differences if d.moves})
    for d in differences:
        moves = sorted(d.moves, key=attrgetter("op", "old", "new"))
        for kind, alike in groupby(moves, key=attrgetter("op", "old", "new")):
            names = tuple(dict.fromkeys(m.name or m.op for m in alike))
            groups.setdefault((kind, names), []).append(d.subject)
    ordered = sorted(groups.items(), key=lambda item: -max(totals[subject] for subject in item[1]))
    rows = []
    for ((op, then, now), names), subjects in ordered:
        shown = some((printable(name, NAME) for name in names), _NAMED)
        rows.append((_subjects(subjects), len(names), op, f"{then} -> {now}", shown))
    count = sum(totals.values())
    title = f"{count} operation{'' if count == 1 else 's'} that moved"
    return _table(title, ("subject", "each", "type", "moved", "names"), rows)


def _figures(differences: Sequence[Difference]) -> Table | None:
    """Figures by how many times the noise they moved; not those that only count what moved."""
    changes = [(d, change) for d in differences if not d.moves for change in d.figures]
    changes.sort(key=lambda pair: -_times_noise(pair[1]))
    rows = [(d.subject, d.gate, change.name, *_values(change)) for d, change in changes]
    heads = ("subject", "gate", "figure", "was", "is", "noise")
    return _table("figures that moved", heads, rows)


def _times_noise(change: FigureChange) -> float:
    old, new = change.old, change.new
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not change.noise:
        return math.inf
    return abs(old - new) / change.noise


def _values(change: FigureChange) -> tuple[str, str, str]:
    """Both values with as many digits as tell them apart, and the noise."""
    texts = ("", "")
    for more in range(_MOST_DIGITS):
        texts = (amount(change.old, change.unit, more), amount(change.new, change.unit, more))
        if texts[0] != texts[1]:
            break
    return (*texts, "" if not change.noise else f"{change.noise:.2g}")


def _subjects(names: Iterable[str]) -> str:
    """Shards in a row as a selection has them, the first ten: `m:L00-L29, m:head.0`."""
    runs: list[list[str]] = []
    for name in dict.fromkeys(names):
        if runs and _after(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    texts = [r[0] + (f"-{r[-1].partition(':')[2]}" if len(r) > 1 else "") for r in runs]
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join((*texts[:_SHOWN], *more))


def _after(shard: str) -> str:
    """`m:L02` after `m:L01`; empty for a model, and for a shard without a number."""
    number = re.search(r":.*?(\d{1,9})$", shard)
    return f"{shard[: number.start(1)]}{int(number[1]) + 1:0{len(number[1])}d}" if number else ""


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
