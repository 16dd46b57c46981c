"""The table at the end of a run: one line a verdict, worst first, fitted to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_ORDER = {"error": 0, "failed": 1, "unproven": 2, "not run": 3, "warned": 4, "passed": 5}
_SHOWN = 12
"""Passed verdicts shown before the rest is only counted; -v shows all."""
_NOT_RUN = 3
"""Likewise of gates that were not run: what kept them from it stands above."""
_MORE = " ..."


@dataclass(frozen=True)
class Row:
    """One verdict, or with status `error` the sentence of what kept a gate from being asked.

    `warned`: it passed, and its summary begins with a warning.
    """

    gate: str
    subject: str
    status: str
    summary: str
    warned: bool = False


@dataclass(frozen=True)
class Line:
    """A line with the status that colours it."""

    text: str
    status: str = ""


def table(rows: Sequence[Row], *, width: int, everything: bool = False) -> Iterator[Line]:
    """Errors, failed, unproven, not run, warned, passed; each with behaviour first, by subject."""
    ranked = sorted(rows, key=lambda r: (_rank(r), r.gate != "behaviour", r.subject, r.gate))
    wide = max((len(row.subject) for row in ranked), default=0)
    for label, of_label in groupby(ranked, key=_label):
        group = list(of_label)
        most = len(group) if everything else {"passed": _SHOWN, "not run": _NOT_RUN}.get(label)
        for row in group[:most]:
            text = f"{label:<8} {row.subject:<{wide}}  {row.gate:<11} {row.summary}"
            yield Line(fitted(text, width), label)
        if hidden := len(group[most:]) if most else 0:
            yield Line(f"... and {hidden} more {label} (-v shows all)")
    yield Line(fitted(_count(ranked), width))


def fitted(text: str, width: int) -> str:
    """The text in at most `width` columns: whole parts (` · `) if one fits, else whole words."""
    text = " ".join(text.split("\n")).rstrip()
    if len(text) <= width:
        return text
    room = max(width - len(_MORE), 1)
    # A cut falls on a separator, which may be the first character that no longer fits.
    for separator in (" · ", " "):
        at = text.rfind(separator, 0, room + len(separator))
        if at > room // 2:
            return text[:at].rstrip() + _MORE
    return text[:room] + _MORE


def _label(row: Row) -> str:
    return "warned" if row.warned else row.status


def _rank(row: Row) -> int:
    return _ORDER.get(_label(row), 0)


def _count(rows: Sequence[Row]) -> str:
    gates = dict.fromkeys(row.gate for row in rows)
    parts = []
    for gate in gates:
        of_gate = [row for row in rows if row.gate == gate]
        passed = sum(1 for row in of_gate if row.status == "passed")
        parts.append(f"{gate} {passed}/{len(of_gate)}")
    return "passed: " + ", ".join(parts)
