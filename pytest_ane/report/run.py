"""A run as people read it: a row for each verdict, in order; what was asked, when and where."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from pytest_ane.gates.verdict import Verdict, counted
from pytest_ane.mlprogram.errors import EvidenceError, ReportError
from pytest_ane.mlprogram.strict_json import strict
from pytest_ane.mlprogram.text import shown
from pytest_ane.records import run as records
from pytest_ane.records.history import Asked, Course, Earlier
from pytest_ane.records.memory import Place, machine_of
from pytest_ane.records.record import Record
from pytest_ane.records.run import Facts, RunFile

if TYPE_CHECKING:
    from pytest_ane.report.writeups import Page

_ORDER = {"error": 0, "failed": 1, "unproven": 2, "not run": 3, "warned": 4, "passed": 5}


class StoredVerdict(Mapping[str, Any]):
    """A verdict's JSON data, as `pack` made them until they are read: a tenth of the memory."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    @staticmethod
    def pack(data: Mapping[str, Any]) -> bytes:
        """Data as of `report.verdict.to_json`, as they go from process to process."""
        return zlib.compress(json.dumps(data).encode())

    def __getitem__(self, name: str) -> Any:
        return _unpacked(self._packed)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_unpacked(self._packed))

    def __len__(self) -> int:
        return len(_unpacked(self._packed))


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(zlib.decompress(packed))
    return data


@dataclass(frozen=True)
class Row:
    """One verdict, or with status `error` or `not run` what kept a gate from being asked.

    `gate` is empty where a test broke down before it came to one. `warned` passed with a warning,
    `allowed` did not pass and the policy lets it be. `place` is where a test of one's own failed:
    file and line from 1. `data` are the verdict's JSON data, `marks` what stands beside its
    subject, `part` tells tests of one gate apart: `load`, `call[T1]`.
    """

    gate: str
    subject: str
    status: str
    summary: str
    warned: bool = False
    allowed: bool = False
    reasons: tuple[str, ...] = ()
    place: tuple[str, int] | None = None
    data: Mapping[str, Any] | None = None
    marks: tuple[str, ...] = ()
    test: str = ""
    part: str = ""

    @property
    def asked(self) -> tuple[str, str, str]:
        """What tells it from the others of its run."""
        return self.gate, self.subject, self.part

    @property
    def name(self) -> str:
        """Its subject with its marks."""
        return " ".join((self.subject, *self.marks))

    @property
    def label(self) -> str:
        """The status, or `warned`."""
        return "warned" if self.warned else self.status

    @property
    def word(self) -> str:
        """The label as the table has it: what is red stands out without colours."""
        return self.label.upper() if self.red else self.label

    @property
    def red(self) -> bool:
        """Whether it fails the run."""
        return self.status != "passed" and not self.allowed


def ranked(rows: Iterable[Row]) -> list[Row]:
    """Errors, failed, unproven, not run, warned, passed; each with behaviour first, by subject."""
    return sorted(
        rows, key=lambda r: (_ORDER.get(r.label, 0), r.gate != "behaviour", r.subject, r.gate)
    )


def counts(rows: Iterable[Row]) -> str:
    """`1 error, 2 failed, 3 passed`, the worst first."""
    numbers = Counter(row.label for row in ranked(rows))
    return ", ".join(counted(n, label, "s" * (label == "error")) for label, n in numbers.items())


_VERDICT = TypeAdapter(Verdict)
_FACTS = TypeAdapter(Facts)
_ROW = TypeAdapter(Row)
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NOT_REPEATED = ("--ane-shards", "--ane-package", "--ane-report", "--ane-model-explorer")
"""Options that pick shards or only tell of a run."""


@dataclass(frozen=True)
class Run:
    """All rows of a run.

    `earlier` are figures of the run before it, `before` that run where its file is at hand;
    `courses` are figures over many runs, `documents` what other commands printed with `--json`,
    `writeups` those of the project, the newest first. No file has these.
    """

    header: str
    rows: tuple[Row, ...]
    facts: Facts = field(default_factory=Facts)
    earlier: Earlier | None = None
    before: Run | None = None
    courses: tuple[Course, ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    writeups: tuple[Page, ...] = ()

    def command(self, *subjects: str, marker: str = "") -> str:
        """The command that repeats the run, or asks some shards or models one gate again.

        `marker` is a gate's name; empty for the run's own `-m`.
        """
        shards = ",".join(s if ":" in s else f"{s}:*" for s in subjects) or self.facts.selection
        packages = [f"{n}={v}" for n, v in self._options() if n == "--ane-package"]
        options = dict(self._options())
        own, keyword = options.pop("-m", ""), options.pop("-k", "")
        keyword = "" if marker else keyword
        marker = marker or own
        texts = packages or [f"--ane-shards={shards}"]
        texts += [f"{name}={value}" if value else name for name, value in options.items()
                  if name not in _NOT_REPEATED]  # fmt: skip
        last = [text for of in (("-m", marker), ("-k", keyword)) if of[1] for text in of]
        return join(["pytest", *texts, *last])

    def _options(self) -> Iterator[tuple[str, str]]:
        arguments = (*self.facts.arguments, "")
        for argument, after in pairwise(arguments):
            name, equals, value = argument.partition("=")
            if name in ("-m", "-k") or name.startswith("--ane-"):
                follows = not equals and not after.startswith("-")
                yield name, after if follows else value


def places_of(run: Run) -> dict[Asked, Place]:
    """Where each verdict of a run was measured, by gate, subject and part."""
    return {row.asked: _place(row) for row in run.rows if row.data is not None}


def comparable(row: Row, other: Row) -> bool:
    """Whether figures of two rows of one gate may be compared."""
    return _place(row).compares(_place(other))


def against(run: Run, before: Run) -> Run:
    """A run beside an earlier one; of that, the figures that may not be compared are left out."""
    now = {row.asked: row for row in run.rows}
    figures = {
        row.asked: {
            figure["name"]: float(figure["value"])
            for figure in row.data["figures"]
            if isinstance(figure["value"], int | float) or figure["value"] in _NUMBERS
        }
        for row in before.rows
        if row.data is not None and row.asked in now and comparable(row, now[row.asked])
    }
    facts = before.facts
    label = f"{facts.begun.replace('T', ' ').removesuffix('Z')} UTC"
    label += f", commit {facts.commit[:9]}" if facts.commit else ""
    return replace(run, before=before, earlier=Earlier(label, facts.begun, facts.commit, figures))


def _place(row: Row) -> Place:
    provenance = (row.data or {}).get("provenance") or {}
    facts = {name: str(value) for name, value in provenance.items()}
    return Place.of(row.gate, facts | {"machine": machine_of(facts)})


def read_run(path: Path) -> Run:
    """The run in a file of `--ane-report=run.jsonl`, the worst first; else `ReportError`."""
    try:
        return run_of(records.read_run(path))
    except EvidenceError as error:
        raise ReportError(str(error)) from None
    except ValueError as error:
        raise ReportError(f"{path} is no file of a run ({error}).") from None


def run_of(found: RunFile) -> Run:
    """A run by its records, texts as people may read them; `ValueError` for a damaged verdict."""
    facts = _FACTS.validate_python(shown(strict(vars(found.facts))))
    rows = {}
    for record in found.records:
        if record.verdict is not None:  # A test that was run again has several.
            row = _row(record)
            rows[row.test or row.asked] = row
    return Run(facts.header, tuple(ranked(rows.values())), facts)


def verdict_of(data: Mapping[str, Any] | None) -> Verdict | None:
    """The verdict that `report.verdict.to_json` made data of; `ReportError` for damaged ones."""
    if data is None:
        return None
    try:
        figures = [
            {**figure, "value": _NUMBERS.get(figure["value"], figure["value"])}
            for figure in data["figures"]
        ]
        tables = [
            {**table, "rows": [[_NUMBERS.get(c, c) for c in row] for row in table["rows"]]}
            for table in data.get("tables", ())
        ]
        return _VERDICT.validate_python({**data, "figures": figures, "tables": tables})
    except (LookupError, TypeError, ValueError):
        raise ReportError(
            f"The report's verdict {data.get('gate')} of {data.get('subject')} is damaged; run the "
            "gate again."
        ) from None


_OF_ROW = ("warned", "allowed", "marks", "place", "test")
"""What a row has besides its verdict."""


def verdict_data(row: Row) -> dict[str, Any]:
    """A row as a record's `verdict`: the verdict's JSON data, and what else the row says."""
    words = {"status": row.status, "summary": row.summary, "reasons": list(row.reasons)}
    more = {name: value for name in _OF_ROW if (value := getattr(row, name))}
    data = {**shown(words), **(row.data or {}), **shown(strict(more))}
    return {name: value for name, value in data.items() if name not in ("gate", "subject")}


def _row(record: Record) -> Row:
    data = shown({"gate": record.gate, "subject": record.subject, **(record.verdict or {})})
    row = {name: data[name] for name in ("status", "summary", "reasons", *_OF_ROW) if name in data}
    row |= {"gate": data["gate"], "subject": data["subject"], "part": shown(record.part)}
    row["data"] = data if "figures" in data else None
    try:
        return _ROW.validate_python(row)
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_url=False, include_input=False)[0]["loc"]))
        of = f"the verdict {data['gate']} of {data['subject']}"
        raise ValueError(f"{of}: {place} is missing or damaged") from None
