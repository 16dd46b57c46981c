"""What people ask of a run first: is it right, does it run on the ANE, how big, how fast?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import counted, some
from pytest_ane.report.run import Row, verdict_of
from pytest_ane.report.table import amount
from pytest_ane.report.terminal import answer, cause_of

Word: TypeAlias = Literal["yes", "no", "undecided", "not known", "not asked", ""]
_PLACES: tuple[tuple[Word, str], ...] = (
    ("no", "off the ANE"),
    ("undecided", "undecided"),
    ("yes", "on the ANE"),
)
_NAMED = 3


class Answer(NamedTuple):
    """A question, the word that answers it, if there is one, and what that rests on."""

    question: str
    word: Word
    says: str

    @property
    def line(self) -> str:
        """`yes: L01: cosine 0.9998 (needs 0.97)`."""
        return ": ".join(filter(None, (self.word, self.says)))


def answers(rows: Sequence[Row]) -> Iterator[Answer]:
    """All of them; what no gate was asked of says so."""
    yield right(rows)
    yield on_the_ane(rows)
    yield _size(rows)
    yield _speed(rows)


def right(rows: Sequence[Row], of: int = 0) -> Answer:
    """By fidelity, hazards and behaviour; `of` so many shards, where that is told."""
    question, asked = "Is it right?", [*_asked(rows, "right", "sound")]
    for status in ("failed", "error", "unproven", "not run"):
        if found := [row for row in asked if row.red and row.status == status]:
            first = found[0]
            word: Word = "no" if status in ("failed", "error") else "not known"
            if word == "no" or any(map(_compared, asked)):
                why = first.reasons[0].partition("; ")[0] if first.reasons else first.summary
                return Answer(question, word, f"{_named(found, asked)} {first.gate}: {why}")
            break
    held = [row for row in asked if row.status == "passed" and _compared(row)]
    if not held:
        nobody = "nobody said what it should give" if asked else "no gate was"
        return Answer(question, "not known" if asked else "not asked", nobody)
    shards = [row for row in held if GATES[row.gate].scope == "shard"] or held
    among = f" of {of} shards" * (len({*map(_short, shards)}) < of)
    least = answer(min(held, key=_margin))
    whole = next((answer(row) for row in held if GATES[row.gate].scope == "model"), least)
    says = least if whole == least else f"{least}, {whole}"
    return Answer(question, "yes", f"{_named(shards, asked)}{among}: {says}")


def on_the_ane(rows: Sequence[Row]) -> Answer:
    """`no` where a shard is off it, or red for another reason; `undecided` where one is."""
    question, asked = "Does it run on the ANE?", [*_asked(rows, "place")]
    for word, said in _PLACES:
        if alike := [r for r in asked if answer(r).startswith(said) or (r.red and word == "no")]:
            first = max(alike, key=lambda row: row.red)
            same = [row for row in alike if cause_of(row) == cause_of(first)]
            why = answer(first).removeprefix(said).strip()
            more = f", {len(alike) - len(same)} more for other reasons" * (len(same) < len(alike))
            separate = " " if why.startswith("(") else ": "
            return Answer(question, word, f"{_named(same, asked)}{separate}{why}{more}")
    return Answer(question, "not asked", "no gate was")


def _size(rows: Sequence[Row]) -> Answer:
    sizes, plain = {}, 0.0
    for row in _asked(rows, "size"):
        found = verdict_of(row.data)
        values = found.values if found else {}
        size, ratio = values.get("size_bytes"), values.get("ratio", 1.0)
        if isinstance(size, int) and not isinstance(ratio, str):
            # Functions of one package share it.
            sizes[row.subject.partition("[")[0]] = size, ratio * size
    size, plain = (sum(each[i] for each in sizes.values()) for i in (0, 1))
    if not size:
        return Answer("How big?", "not asked", "no gate was")
    packages = counted(len(sizes), "package")
    says = f"{amount(int(size), 'bytes')} in {packages}, {plain / size:.2f}x smaller"
    return Answer("How big?", "", f"{says} than fp16" if plain > size else says.rpartition(",")[0])


def _speed(rows: Sequence[Row]) -> Answer:
    asked = [*_asked(rows, "speed")]
    if not asked:
        return Answer("How fast?", "not asked", "pytest -m bench --ane-shards=all")
    return Answer("How fast?", "", f"{_short(asked[0])}: {answer(asked[0])}")


def _asked(rows: Sequence[Row], *answers: str) -> Iterator[Row]:
    """Rows of the gates of this package that answer one of these."""
    return (row for row in rows if row.gate in GATES and GATES[row.gate].answers in answers)


def _named(rows: Sequence[Row], among: Sequence[Row]) -> str:
    """The first few, or all of several that were asked the same."""
    names, gates = dict.fromkeys(map(_short, rows)), {row.gate for row in rows}
    every = {_short(row) for row in among if row.gate in gates}
    return f"all {len(every)}" if len(names) == len(every) > _NAMED else some(names, _NAMED)


def _short(row: Row) -> str:
    """A shard without its model's name."""
    return row.subject.rpartition(":")[2]


def _compared(row: Row) -> bool:
    """Whether there was something to compare with."""
    if GATES[row.gate].answers != "right":
        return False
    figure = found.figure("finite") if (found := verdict_of(row.data)) else None
    return figure is None or figure.note != "no reference"


def _margin(row: Row) -> float:
    found = verdict_of(row.data)
    return min((figure.headroom for figure in found.figures), default=0.0) if found else 0.0
