"""What a run prints: the table of its verdicts, and what became of its evidence.

The table has one verdict a row, the worst first, wrapped to the terminal.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_ane.gates.verdict import counted, some
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.report.run import Row, counts, ranked

_CAUSES = ("failed", "unproven")
_BEYOND = re.compile(r" [<>] \S+")
_SIMULATED = "simulated: "
_NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
_SHOWN = 12
"""Passed verdicts shown before the rest is only counted; -v shows all."""
_NOT_RUN = 3
"""Likewise of gates that were not run: what kept them from it stands above."""
_INDENT = 9
"""Columns before what is continued, where the room beside subject and gate is small."""
_ROOM = 40
_GATE = 11
"""Columns of a gate's name: those of the longest shipped one."""


@dataclass(frozen=True)
class Line:
    """A line with the status that colours it."""

    text: str
    status: str = ""


def table(
    rows: Sequence[Row], *, width: int | None = None, everything: bool = False, last: str = ""
) -> Iterator[Line]:
    """Errors, failed, unproven, not run, warned, passed; each with behaviour first, by subject.

    Of passed rows the figure that decides is shown, of warned ones the warning, of others the cause
    with its figure and remedy, once for all shards that have it; `everything` shows all rows whole.
    They are wrapped to `width`; None, as in a pipe, wraps nothing. The last line counts them, and
    ends with `last`.
    """
    ordered = ranked(rows)
    subjects = max((len(row.name) for row in ordered), default=0)
    gates = max((_GATE, *(len(row.gate) for row in ordered)))
    for status, of_status in groupby(ordered, key=lambda row: row.label):
        group, also = list(of_status), defaultdict[str, dict[str, Row]](dict)
        if status in (*_CAUSES, "warned") and not everything:
            for row in group:
                also[cause_of(row)].setdefault(row.name, row)
            group = [next(iter(rows.values())) for rows in also.values()]
        most = len(group) if everything else {"passed": _SHOWN, "not run": _NOT_RUN}.get(status)
        for row in group[:most]:
            head = f"{row.word:<8} {row.name:<{subjects}}  {row.gate:<{gates}} "
            text = row.summary if everything else answer(row)
            if others := [*also[cause_of(row)]][1:]:
                text += f" · also {', '.join(others)}"
            lines = _wrapped(head, text, width)
            yield from (Line(printable(text, LONGEST), status) for text in lines)
        if hidden := len(group[most:]) if most else 0:
            yield Line(f"... and {hidden} more {status} (-v shows all)")
    says = f"{counted(len(ordered), 'gate')}: {counts(ordered)}{last}"
    yield from (Line(text) for text in _wrapped("", says, width))


def answer(row: Row) -> str:
    """The figure that decides; of what is red the reason, what breaks a limit, and the origin."""
    parts = row.summary.split(" · ")
    if row.label not in _CAUSES or not row.reasons:
        return parts[0] if row.label in ("passed", "warned") else row.summary
    basis, reason = _SIMULATED * row.summary.startswith(_SIMULATED), row.reasons[0]
    parts[0] = parts[0].removeprefix(basis)
    beyond = next((p for p in parts if _BEYOND.search(p) and p not in reason), "")
    origin = (p for p in parts if p.startswith("recorded 2"))
    return " · ".join(filter(None, (f"{basis}{reason}", beyond, *origin)))


def cause_of(row: Row) -> str:
    """The first reason without its numbers and the shard's name; equal ones have one cause."""
    reason = answer(row).replace(row.subject.rpartition(":")[2], "")
    return f"{row.gate} {_NUMBERS.sub('', reason)}"


def _wrapped(head: str, text: str, width: int | None) -> Iterator[str]:
    text = " ".join(text.split("\n"))
    if width is None or len(head) + len(text) <= width:
        yield f"{head}{text}".rstrip()
        return
    indent = len(head) if width - len(head) >= _ROOM else min(_INDENT, len(head))
    yield from textwrap.wrap(
        f"{head}{text}", width, subsequent_indent=" " * indent, drop_whitespace=True,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


_FOLDERS = re.compile(r"(?<![\w.:/\])])/(?:[^/\s:,;'\"]+/)+")
"""The folders of an absolute path, also after `=`."""


def brief(sentence: str) -> str:
    """A text with absolute paths shortened to their last part."""
    return _FOLDERS.sub("", sentence)


_NOTES = 10
_QUIET = ("recorded", "kept", "fetched", "verified")
"""What is only counted: nothing was lost, and nothing needs doing."""


@dataclass(frozen=True)
class Note:
    """What became of a file of evidence: `recorded`, `kept`, `left stale`, `does not count`, ...

    `lines` are what changed, or why; of what is `verified` the machine that it is of.
    """

    what: str
    file: str
    lines: tuple[str, ...] = ()


def note_lines(notes: Sequence[Note], unused: Sequence[str], folder: str) -> Iterator[str]:
    """The notes in lines: counts first, then what somebody should look at."""
    notes = sorted(notes, key=lambda note: (note.what, note.file))
    counts = Counter(note.what for note in notes)
    if counts:
        machines = {line: None for note in notes if note.what == "verified" for line in note.lines}
        of = f" ({'; '.join(machines)})" if machines else ""
        said = (
            f"{count} {what}{of if what == 'verified' else ''}" for what, count in counts.items()
        )
        yield f"{folder}: {', '.join(said)}"
    loud = [note for note in notes if note.what not in _QUIET]
    for note in loud[:_NOTES]:
        yield f"{note.what} {note.file}"
        yield from (f"  {line}" for line in note.lines)
    if len(loud) > _NOTES:
        yield f"... and {len(loud) - _NOTES} more"
    if unused:
        files = f"{counted(len(unused), 'file')} that no shard uses: {some(unused, 3)}"
        yield f"{folder}: {files}; pytest-ane evidence prune removes what is not needed"
