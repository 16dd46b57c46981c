"""Evidence of several systems, or chips, compared: in lines, and as data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from pytest_ane.gates.base import Move
from pytest_ane.gates.verdict import Column, Table
from pytest_ane.mlprogram.text import NAME, printable
from pytest_ane.records.compare import By, Comparison, Difference, FigureChange, Side, Skipped
from pytest_ane.report.figures import amount
from pytest_ane.report.table import table
from pytest_ane.report.verdict import compact, reasons, row

_SHOWN = 10
"""Rows of a table; the data has all."""
_WORD = {"os": "system", "chip": "chip"}
_MOST_DIGITS = 8


def lines(comparison: Comparison, width: int | None = None) -> Iterator[str]:
    """Each pair of systems, or chips, with what differs; then the files that are not compared."""
    by = comparison.by
    pairs = [(d.old.name, d.new.name) for d in comparison.compared]
    for pair in dict.fromkeys(pairs):
        yield from _pair([d for d, p in zip(comparison.compared, pairs, strict=True) if p == pair],
                         by, width)  # fmt: skip
    if unheld := comparison.unheld:
        yield f"not held against their packages, which are not built here: {_subjects(unheld)}"
    if comparison.skipped:
        count = len(comparison.skipped)
        yield f"not compared: {count} file{'' if count == 1 else 's'}"
    for _, alike in groupby(sorted(comparison.skipped, key=_of_kind), key=_of_kind):
        said = [f"  {_reason(one, by)}" for one in alike]
        yield from said[:_SHOWN]
        yield from _more(len(said))


def nothing(comparison: Comparison) -> str:
    """The error where nothing could be compared."""
    word = _WORD[comparison.by]
    return (
        f"Nothing was compared: no two {word}s have evidence of the same bytes and the same "
        f"question; record it on another {word}, or name a folder that has it."
    )


def red(comparison: Comparison) -> str:
    """The error where gates pass on one side alone; empty where none does."""
    count = sum(d.is_red for d in comparison.compared)
    if not count:
        return ""
    gates = "gate passes" if count == 1 else "gates pass"
    return f"{count} {gates} on one {_WORD[comparison.by]} and not on another."


def data(comparison: Comparison) -> dict[str, Any]:
    """The same as JSON data, with every operation and figure that differs."""
    compared = [
        {
            "gate": d.gate,
            "subject": d.subject,
            "old": _side(d.old),
            "new": _side(d.new),
            "moves": [asdict(move) for move in d.moves],
            "figures": [asdict(change) for change in d.figures],
            "red": d.is_red,
            "confounded": d.is_confounded,
        }
        for d in comparison.compared
    ]
    skipped = [
        {"file": one.file, "kind": one.kind, "reason": _reason(one, comparison.by)}
        for one in comparison.skipped
    ]
    return {
        "by": comparison.by,
        "compared": compared,
        "not_compared": skipped,
        "not_held": list(comparison.unheld),
    }


def _side(side: Side) -> dict[str, Any]:
    verdict = side.verdict
    words = {"status": verdict.status, "summary": row(verdict), "reasons": reasons(verdict)}
    return {"name": side.name, "machine": side.machine, "records": side.records, "verdict": words}


def _pair(differences: Sequence[Difference], by: By, width: int | None) -> Iterator[str]:
    """Verdicts, operations and figures that differ between two systems, or chips."""
    old, new = differences[0].old.name, differences[0].new.name
    count = len(differences)
    gates = (
        f"{count} gate{'' if count == 1 else 's'} of {_subjects(d.subject for d in differences)}"
    )
    yield f"{old} -> {new}: {gates} compared"
    if mixed := sorted({(d.old.machine, d.new.machine) for d in differences if d.is_confounded}):
        what = _WORD["chip" if by == "os" else "os"]
        yield f"  the {what} differs too: {' -> '.join(mixed[0])}"
    tables = [t for t in (_verdicts(differences), _moves(differences), _figures(differences)) if t]
    for found in tables:
        shown = Table(found.title, found.columns, found.rows[:_SHOWN])
        yield from (f"  {line}" for line in table(shown, width and width - 2))
        yield from _more(len(found.rows))
    if not tables:
        yield "  nothing differs"


def _more(count: int) -> Iterator[str]:
    """How many rows are left out, if any are."""
    if count > _SHOWN:
        yield f"  ... and {count - _SHOWN} more; --json has all"


def _of_kind(one: Skipped) -> str:
    return one.kind


def _verdicts(differences: Sequence[Difference]) -> Table | None:
    """Gates by what became of them; shards with the same reason share a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    changed = [d for d in differences if d.old.verdict.status != d.new.verdict.status]
    for d in sorted(changed, key=lambda d: not d.is_red):
        key = (d.gate, d.old.verdict.status, d.new.verdict.status, _why(d))
        groups.setdefault(key, []).append(d.subject)
    rows = tuple((_subjects(subjects), *key) for key, subjects in groups.items())
    heads = ("subject", "gate", "was", "is", "why")
    return Table("verdicts that differ", tuple(map(Column, heads)), rows) if rows else None


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
        moves = sorted(d.moves, key=_kind)
        for kind, alike in groupby(moves, key=_kind):
            names = tuple(dict.fromkeys(m.name or m.op for m in alike))
            groups.setdefault((kind, names), []).append(d.subject)
    if not groups:
        return None
    rows = [
        (_subjects(subjects), len(names), op, f"{then} -> {now}", _names(names))
        for ((op, then, now), names), subjects in sorted(
            groups.items(), key=lambda item: -max(totals[subject] for subject in item[1])
        )
    ]
    heads = ("subject", "each", "type", "moved", "names")
    count = sum(totals.values())
    title = f"{count} operation{'' if count == 1 else 's'} that moved"
    return Table(title, tuple(map(Column, heads)), tuple(rows))


def _kind(move: Move) -> tuple[str, str, str]:
    return (move.op, move.old, move.new)


def _names(names: Sequence[str]) -> str:
    return compact([printable(name, NAME) for name in names])


def _figures(differences: Sequence[Difference]) -> Table | None:
    """Figures by how many times the noise they moved; not those that only count what moved."""
    changes = [(d, change) for d in differences if not d.moves for change in d.figures]
    changes.sort(key=lambda pair: -_times_noise(pair[1]))
    rows = tuple((d.subject, d.gate, change.name, *_values(change)) for d, change in changes)
    heads = ("subject", "gate", "figure", "was", "is", "noise")
    return Table("figures that moved", tuple(map(Column, heads)), rows) if rows else None


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
    runs: list[list[re.Match[str]]] = []
    for match in (re.fullmatch(r"(.*?)(\d{0,9})", name) for name in dict.fromkeys(names)):
        assert match is not None
        if runs and _follows(runs[-1][-1], match):
            runs[-1].append(match)
        else:
            runs.append([match])
    texts = [r[0][0] + (f"-{r[-1][0].partition(':')[2]}" if len(r) > 1 else "") for r in runs]
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join((*texts[:_SHOWN], *more))


def _follows(last: re.Match[str], name: re.Match[str]) -> bool:
    if not (":" in name[0] and last[2] and name[2]) or last[1] != name[1]:
        return False
    return name[2] == f"{int(last[2]) + 1:0{len(last[2])}d}"


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
