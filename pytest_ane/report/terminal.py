"""The table at the end of a run: one line a verdict, worst first, fitted to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_ane.report.rows import Row, count, ranked

_SHOWN = 12
"""Passed verdicts shown before the rest is only counted; -v shows all."""
_NOT_RUN = 3
"""Likewise of gates that were not run: what kept them from it stands above."""
_MORE = " ..."


@dataclass(frozen=True)
class Line:
    """A line with the status that colours it."""

    text: str
    status: str = ""


def table(rows: Sequence[Row], *, width: int, everything: bool = False) -> Iterator[Line]:
    """Errors, failed, unproven, not run, warned, passed; each with behaviour first, by subject."""
    ordered = ranked(rows)
    wide = max((len(row.subject) for row in ordered), default=0)
    for label, of_label in groupby(ordered, key=lambda row: row.label):
        group = list(of_label)
        most = len(group) if everything else {"passed": _SHOWN, "not run": _NOT_RUN}.get(label)
        for row in group[:most]:
            text = f"{label:<8} {row.subject:<{wide}}  {row.gate:<11} {row.summary}"
            yield Line(fitted(text, width), label)
        if hidden := len(group[most:]) if most else 0:
            yield Line(f"... and {hidden} more {label} (-v shows all)")
    yield Line(fitted(count(ordered), width))


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
