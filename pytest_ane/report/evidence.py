"""What became of evidence in a run: recorded, kept, not used, and files that no shard uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SHOWN = 10
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


def lines(notes: Sequence[Note], unused: Sequence[str], folder: str) -> Iterator[str]:
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
    for note in (loud := [note for note in notes if _is_loud(note)])[:_SHOWN]:
        yield f"{note.what} {note.file}"
        yield from (f"  {line}" for line in note.lines)
    if len(loud) > _SHOWN:
        yield f"... and {len(loud) - _SHOWN} more"
    if unused:
        files = "1 file that no shard uses" if len(unused) == 1 else _files(unused)
        named = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
        yield f"{folder}: {files}: {named}; pytest-ane evidence prune removes what is not needed"


def _is_loud(note: Note) -> bool:
    return note.what not in _QUIET and (bool(note.lines) or note.what != "recorded again")


def _files(unused: Sequence[str]) -> str:
    return f"{len(unused)} files that no shard uses"
