"""The same bytes on several systems, or chips: which verdicts, placements and figures differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_ane.gates.base import Move, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import STATUSES, Cell, Figure, Verdict
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import UnprovenKind
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.records.record import Record, machine, plain
from pytest_ane.records.verify import differences, judge

By: TypeAlias = Literal["os", "chip"]
Kind: TypeAlias = Literal["unused", "copy", "bytes", "question", "units", "alone"]

ROUNDING = 2.0**-10
"""The share by which a figure may differ between two single records without a cause. Neighbours in
fp16 (IEEE 754 binary16, 11 significant bits) are at most 2^-10 of their value apart, and two
systems may round to either. Figures below 1, such as cosines and shares, are held against 1."""
_SAME = 1e-6
"""Figures are shown with six digits; what differs below these is the same."""


@dataclass(frozen=True)
class Recorded:
    """Evidence to compare; files of one `digest` are one, held ones fit the package built here."""

    file: Path
    digest: str
    record: Record
    subject: Subject
    is_held: bool = True

    def side(self, by: By) -> str:
        """The system, `macOS 26.1 (25B78)`, or the chip that it is of; empty where unknown."""
        of = self.record.environment.get
        if by == "chip":
            return of("chip", "")
        build = of("os_build", "")
        return of("os", "") + (f" ({build})" if build else "")

    @property
    def question(self) -> str:
        """Digest of the bytes, the question and the compute units: equal ones are comparable."""
        units = self.record.environment.get("compute_units", "")
        return key_digest([dict(self.record.files), plain(self.record.asked), units])


@dataclass(frozen=True)
class Skipped:
    """A file that is not compared.

    The kind is an `UnprovenError`'s, or `unused` by the manifest; the `copy` of a record that is
    compared; of other `bytes`, another `question` or other compute `units` than what is of another
    system; or `alone`. The detail is the error's sentence, what differs, or what it is of.
    """

    file: Path
    kind: Kind | UnprovenKind
    detail: str = ""


@dataclass(frozen=True)
class Side:
    """What a system has of a gate and subject, by today's policy the worst; or what a chip has."""

    name: str
    machine: str
    verdict: Verdict
    records: int


@dataclass(frozen=True)
class FigureChange:
    """A figure that differs beyond the noise, None of words; of several records the nearest."""

    name: str
    label: str
    unit: str
    old: Cell
    new: Cell
    noise: float | None = None


@dataclass(frozen=True)
class Difference:
    """A gate of one subject on two systems, or chips; where nothing differs it is empty."""

    gate: str
    subject: str
    old: Side
    new: Side
    moves: tuple[Move, ...] = ()
    figures: tuple[FigureChange, ...] = ()

    @property
    def is_red(self) -> bool:
        """Whether the gate passes on one side alone."""
        return (self.old.verdict.status == "passed") != (self.new.verdict.status == "passed")

    @property
    def is_confounded(self) -> bool:
        """Whether the sides differ in more than what is compared."""
        return self.old.machine != self.new.machine


@dataclass(frozen=True)
class Comparison:
    """What became of all evidence. Of `unheld` subjects no package was there to hold it against."""

    by: By
    compared: tuple[Difference, ...]
    skipped: tuple[Skipped, ...]
    unheld: tuple[str, ...] = ()


def compare(found: Iterable[Recorded | Skipped], by: By) -> Comparison:
    """Neighbouring systems of one chip, or chips of one system; others are `is_confounded`."""
    every = list(found)
    skipped = [one for one in every if isinstance(one, Skipped)]
    recorded = [one for one in every if isinstance(one, Recorded)]
    compared: list[Difference] = []
    unheld = dict.fromkeys(one.subject.qualified for one in recorded if not one.is_held)
    asked = grouped(((one.record.gate, one.record.subject), one) for one in recorded)
    for group in asked.values():
        single = [same[0] for same in grouped((one.digest, one) for one in group).values()]
        kept = {one.file for one in single}
        skipped += [Skipped(one.file, "copy") for one in group if one.file not in kept]
        for alike in grouped((one.question, one) for one in single).values():
            pairs = list(_pairs(alike, by))
            compared += [difference(old, new, by) for old, new in pairs]
            used = {one.file for pair in pairs for side in pair for one in side}
            left = [one for one in alike if one.file not in used]
            skipped += [_skipped(one, group, by) for one in left]
    return Comparison(by, tuple(compared), tuple(skipped), tuple(unheld))


def difference(old: Sequence[Recorded], new: Sequence[Recorded], by: By) -> Difference:
    """What differs between the records of two systems, or chips; all of one gate and question."""
    gate = GATES[old[0].record.gate]
    before, after = ([one.record.measurement for one in side] for side in (old, new))
    # Of several records of a side, none may have an operation where the other side has it.
    moved = [set(gate.moves(then, now)) for then in before for now in after]
    always = set.intersection(*({(m.function, m.op, m.name) for m in moves} for moves in moved))
    moves = (m for m in sorted(moved[-1]) if (m.function, m.op, m.name) in always)
    return Difference(
        gate.name,
        old[0].record.subject,
        _side(old, by),
        _side(new, by),
        tuple(moves),
        tuple(_figures(*([gate.figures(one) for one in side] for side in (before, after)))),
    )


def _pairs(alike: Sequence[Recorded], by: By) -> Iterator[tuple[list[Recorded], list[Recorded]]]:
    other: By = "chip" if by == "os" else "os"
    same = [
        pair
        for machine in grouped((one.side(other), one) for one in alike).values()
        for pair in pairwise(_sides(machine, by))
    ]
    return iter(same or pairwise(_sides(alike, by)))


def _sides(recorded: Sequence[Recorded], by: By) -> list[list[Recorded]]:
    def order(side: str) -> list[tuple[int, str]]:
        parts = re.split("([0-9]+)", side)
        return [(len(part) if part.isdecimal() else 0, part) for part in parts]

    known = grouped((side, one) for one in recorded if (side := one.side(by)))
    return [known[side] for side in sorted(known, key=order)]


def _skipped(one: Recorded, group: Sequence[Recorded], by: By) -> Skipped:
    of = one.record
    others = [o.record for o in group if o.side(by) not in ("", one.side(by))]
    alone = Skipped(one.file, "alone", machine(of))
    if not one.side(by) or not others:
        return alone
    if all(other.files != of.files for other in others):
        return Skipped(one.file, "bytes")
    near = [other for other in others if other.files == of.files]
    asked = [list(differences(plain(other.asked), plain(of.asked))) for other in near]
    if all(asked):
        return Skipped(one.file, "question", asked[0][0][0])
    if all(o.environment.get("compute_units") != of.environment.get("compute_units") for o in near):
        return Skipped(one.file, "units", of.environment.get("compute_units", ""))
    return alone


def _side(recorded: Sequence[Recorded], by: By) -> Side:
    verdicts = [judge(one.record, one.subject) for one in recorded]
    machines = dict.fromkeys(one.side("chip" if by == "os" else "os") for one in recorded)
    worst = min(verdicts, key=lambda verdict: STATUSES.index(verdict.status))
    return Side(recorded[0].side(by), ", ".join(machines), worst, len(recorded))


def _figures(*sides: Sequence[Sequence[Figure]]) -> Iterator[FigureChange]:
    known = {f.name: f for side in reversed(sides) for figures in side for f in figures}
    every = [[{f.name: f.value for f in figures} for figures in side] for side in sides]
    for name, figure in known.items():
        if changed := _changed(*([values.get(name) for values in side] for side in every)):
            yield FigureChange(name, figure.label, figure.unit, *changed)


def _changed(old: Sequence[Cell], new: Sequence[Cell]) -> tuple[Cell, Cell, float | None] | None:
    before, after = _numbers(old), _numbers(new)
    if len(before) < len(old) or len(after) < len(new):
        apart = not {*map(repr, old)} & {*map(repr, new)}
        return (old[-1], new[-1], None) if apart else None
    if max(min(before), min(after)) <= min(max(before), max(after)):
        return None
    falls = min(before) > max(after)
    then, now = (min(before), max(after)) if falls else (max(before), min(after))
    noise = _noise(before, after)
    return (then, now, noise) if abs(then - now) > noise else None


def _numbers(values: Sequence[Cell]) -> list[float]:
    return [v for v in values if isinstance(v, int | float) and math.isfinite(v)]


def _noise(old: Sequence[float], new: Sequence[float]) -> float:
    """The spread of a side's records, where one has several; else what rounding may do."""
    size = max(map(abs, (*old, *new)))
    if spreads := [max(side) - min(side) for side in (old, new) if len(side) > 1]:
        return max(*spreads, _SAME * size)
    if all(isinstance(value, int) for value in (*old, *new)):
        return 0.0
    return ROUNDING * max(1.0, size)
