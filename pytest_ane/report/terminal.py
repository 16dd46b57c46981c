"""What a run prints: its header, the table of its verdicts, and what became of its evidence.

The table has one verdict a row, the worst first, wrapped to the terminal.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.arithmetic import ARITHMETICS, label
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.report.rows import Row, count, ranked

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
    rows: Sequence[Row], *, width: int | None = None, everything: bool = False
) -> Iterator[Line]:
    """Errors, failed, unproven, not run, warned, passed; each with behaviour first, by subject.

    Args:
        rows: the verdicts.
        width: of the terminal: rows are wrapped to it, and of passed ones only what fits one line
            is shown, the figure that decides first. None, as in a pipe, cuts and wraps nothing.
        everything: all rows whole, however many passed.
    """
    ordered = ranked(rows)
    subjects = max((len(row.name) for row in ordered), default=0)
    gates = max((_GATE, *(len(row.gate) for row in ordered)))
    for status, of_status in groupby(ordered, key=lambda row: row.label):
        group = list(of_status)
        most = len(group) if everything else {"passed": _SHOWN, "not run": _NOT_RUN}.get(status)
        for row in group[:most]:
            head = f"{row.word:<8} {row.name:<{subjects}}  {row.gate:<{gates}} "
            whole = everything or status != "passed"
            lines = _wrapped(head, row.summary, width, whole)
            yield from (Line(printable(text, LONGEST), status) for text in lines)
        if hidden := len(group[most:]) if most else 0:
            yield Line(f"... and {hidden} more {status} (-v shows all)")
    yield from (Line(text) for text in _wrapped("", count(ordered), width, whole=True))


def _wrapped(head: str, text: str, width: int | None, whole: bool) -> Iterator[str]:
    """A row in lines of at most `width` columns; words are never cut."""
    text = " ".join(text.split("\n"))
    if width is None or len(head) + len(text) <= width:
        yield f"{head}{text}".rstrip()
        return
    if not whole:
        text = _fitting(text, width - len(head))
    indent = len(head) if width - len(head) >= _ROOM else min(_INDENT, len(head))
    yield from textwrap.wrap(
        f"{head}{text}", width, subsequent_indent=" " * indent, drop_whitespace=True,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _fitting(text: str, room: int) -> str:
    """As many whole parts (` · `) as fit, at least the first."""
    first, *others = text.split(" · ")
    for part in others:
        if len(first) + len(part) + 3 > room:
            break
        first = f"{first} · {part}"
    return first


_FOLDERS = re.compile(r"(?<![\w.:/\])])/(?:[^/\s:,;'\"]+/)+")
"""The folders of an absolute path, also after `=`."""


def brief(sentence: str) -> str:
    """A text with absolute paths shortened to their last part."""
    return _FOLDERS.sub("", sentence)


def header(
    *,
    asked: str,
    selected: Sequence[Shard],
    of: int,
    backend: str,
    device: str = "",
    recorded: bool = False,
    thresholds: Sequence[str] = (),
    unproven: str = "",
    cache: Path | None = None,
    store: str = "",
    cluster: str = "",
    canaries: Sequence[str] = (),
) -> str:
    """`ane: L01 · shards 1 of 34 · ...`: what was asked, and what decides the verdicts.

    `device` names machine and compute units where the backend runs on a device, whose plan then
    says where operations run; `recorded` says that there are recorded plans.
    """
    made_up = {s.source.synthetic for s in selected if s.source and s.source.synthetic}
    seeds = ", ".join(dict.fromkeys(str(shard.probes.seed) for shard in selected))
    parts = [
        asked,
        f"shards {len(selected)} of {of}",
        f"backend {backend}",
        *([] if device else _arithmetic(selected)),
        *([device, "placement by Core ML's plan"] if device else [_placement(selected, recorded)]),
        f"seed {seeds}",
    ]
    parts += [f"weights {text}" for text in sorted(made_up)]
    parts += [f"canary {words}" for words in canaries]
    parts += thresholds
    if unproven:
        parts.append({"allow": "unproven allowed", "fail": "unproven fails"}[unproven])
    places = (("cache", cache), ("store", store), ("cluster", cluster))
    parts += [f"{word} {place}" for word, place in places if place]
    return "ane: " + " · ".join(parts)


def _arithmetic(shards: Sequence[Shard]) -> Sequence[str]:
    """How the executor's runs are computed, unless all are as typed."""
    judged = [word for word in ARITHMETICS if any(word in shard.arithmetic for shard in shards)]
    return [f"arithmetic {', '.join(map(label, judged))}"] if "ane" in judged else []


def _placement(shards: Sequence[Shard], recorded: bool) -> str:
    """What says where operations run, where no device is asked."""
    required = [shard.policy.requires_evidence("placement") for shard in shards]
    if required and all(required):
        return "placement by recorded plans"
    if recorded or any(required):
        return "placement by recorded plans and forecast"
    return "placement by forecast"


_NOTES = 10
_QUIET = ("recorded", "kept", "fetched", "verified")
"""What is only counted: nothing was lost, and nothing needs doing. What is recorded again is too,
where its lines were said before."""


@dataclass(frozen=True)
class Note:
    """What became of one file.

    Attributes:
        what: `recorded`, `recorded again`, `kept`, `left stale`, `does not count`, `not used`,
            `fetched`, `verified`.
        file: relative to the evidence folder.
        lines: what changed, or why; of what is verified the machine that it is of.
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
    loud = [n for n in notes if n.what not in _QUIET and (n.lines or n.what != "recorded again")]
    for note in loud[:_NOTES]:
        yield f"{note.what} {note.file}"
        yield from (f"  {line}" for line in note.lines)
    if len(loud) > _NOTES:
        yield f"... and {len(loud) - _NOTES} more"
    if unused:
        files = f"{len(unused)} file{'' if len(unused) == 1 else 's'} that no shard uses"
        named = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
        yield f"{folder}: {files}: {named}; pytest-ane evidence prune removes what is not needed"
