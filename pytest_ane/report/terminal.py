"""The table at the end of a run: one line a verdict, worst first, fitted to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ORDER = {"failed": 0, "unproven": 1, "passed": 2}
_SHOWN = 12
"""Passed verdicts shown before the rest is only counted; -v shows all."""


@dataclass(frozen=True)
class Row:
    """One verdict."""

    gate: str
    subject: str
    status: str
    summary: str


@dataclass(frozen=True)
class Line:
    """A line with the status that colours it."""

    text: str
    status: str = ""


def table(rows: Sequence[Row], *, width: int, everything: bool = False) -> Iterator[Line]:
    """Failed, then unproven, then passed, each in order of subject and gate."""
    ranked = sorted(rows, key=lambda r: (_ORDER.get(r.status, 0), r.gate != "behaviour", r.subject))
    bad = [row for row in ranked if row.status != "passed"]
    good = [row for row in ranked if row.status == "passed"]
    shown = good if everything or len(good) <= _SHOWN else good[:_SHOWN]
    wide = max(len(row.subject) for row in ranked)
    for row in (*bad, *shown):
        text = f"{row.status:<8} {row.subject:<{wide}}  {row.gate:<11} {row.summary}"
        yield Line(text if len(text) <= width else text[: width - 3] + "...", row.status)
    if hidden := len(good) - len(shown):
        yield Line(f"... and {hidden} more passed (-v shows all)")
    yield Line(_count(ranked))


def _count(rows: Sequence[Row]) -> str:
    gates = dict.fromkeys(row.gate for row in rows)
    parts = []
    for gate in gates:
        of_gate = [row for row in rows if row.gate == gate]
        passed = sum(1 for row in of_gate if row.status == "passed")
        parts.append(f"{gate} {passed}/{len(of_gate)}")
    return "passed: " + ", ".join(parts)
