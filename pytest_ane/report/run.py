"""A run as its file holds it: what was asked, of what, when and where, and every verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pytest_ane.gates.verdict import Verdict
from pytest_ane.history.earlier import Asked, Course, Earlier, Place
from pytest_ane.history.lines import machine_of
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.strict_json import strict
from pytest_ane.report.rows import Row, ranked
from pytest_ane.report.verdict import parse_shown, shown

if TYPE_CHECKING:
    from pytest_ane.tools._writeup_data import Page

T = TypeVar("T")
FORMAT = 1
_MOST_BYTES = 1 << 30
_VERDICT = TypeAdapter(Verdict)
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NOT_REPEATED = (
    "--ane-shards", "--ane-package", "--ane-report", "--ane-model-explorer", "--ane-github",
    "--ane-ledger", "--ane-history",
)  # fmt: skip
"""Options that pick shards or only tell of a run."""


@dataclass(frozen=True)
class Facts:
    """What was run, on what.

    Attributes:
        started: UTC and whole seconds, `2026-11-24T16:00:00Z`.
        seconds: how long it took.
        arguments: of pytest, as they were typed.
        selection: shards, as the option has them.
        manifest: the file's path from pytest's root directory, `digest` its SHA-256, and
            `manifest_text` its lines when the run began, tabs as spaces.
        commit: of the checkout; empty outside of git.
        clean: whether the checkout is that commit.
        versions: of pytest-ane and of what it measures with.
        machine: backend, machine and versions, as the backend tells them.
        stopped: why it ended before all was asked, such as `interrupted`; empty where it did not.
    """

    started: str = ""
    seconds: float = 0.0
    arguments: tuple[str, ...] = ()
    selection: str = ""
    manifest: str = ""
    digest: str = ""
    manifest_text: tuple[str, ...] = ()
    commit: str = ""
    clean: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""


@dataclass(frozen=True)
class Run:
    """All rows of a run.

    Attributes:
        header: what decides the verdicts, in one line.
        rows: of each gate and subject, errors among them.
        facts: what was run, on what.
        earlier: the run before it, with which its figures are compared. No file has it, nor what
            follows.
        before: the same run with its verdicts, where its file is at hand.
        courses: figures over many runs.
        documents: what other commands printed with `--json`; `command` says which.
        writeups: those of the project, the newest first.
    """

    header: str
    rows: tuple[Row, ...]
    facts: Facts = Facts()
    earlier: Earlier | None = None
    before: Run | None = None
    courses: tuple[Course, ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    writeups: tuple[Page, ...] = ()

    def command(self, *subjects: str, marker: str = "") -> str:
        """The command that repeats the run, or asks some shards or models one gate again.

        Args:
            subjects: qualified shard ids, or models' names; none for those of this run.
            marker: a gate's name; empty for the run's own `-m`.
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
        """Our options of the command line and `-m`, with their values."""
        arguments = (*self.facts.arguments, "")
        for argument, after in pairwise(arguments):
            name, equals, value = argument.partition("=")
            if name in ("-m", "-k") or name.startswith("--ane-"):
                follows = not equals and not after.startswith("-")
                yield name, after if follows else value


def places_of(run: Run) -> dict[Asked, Place]:
    """Where each verdict of a run was measured, by gate, subject and part."""
    return {_asked(row): _place(row) for row in run.rows if row.data is not None}


def comparable(row: Row, other: Row) -> bool:
    """Whether figures of two rows of one gate may be compared."""
    return _place(row).compares(_place(other))


def against(run: Run, before: Run) -> Run:
    """A run beside an earlier one; of that, the figures that may not be compared are left out."""
    now = {_asked(row): row for row in run.rows}
    figures = {
        _asked(row): {
            figure["name"]: float(figure["value"])
            for figure in row.data["figures"]
            if isinstance(figure["value"], int | float) or figure["value"] in _NUMBERS
        }
        for row in before.rows
        if row.data is not None and _asked(row) in now and comparable(row, now[_asked(row)])
    }
    facts = before.facts
    label = f"{facts.started.replace('T', ' ').removesuffix('Z')} UTC"
    label += f", commit {facts.commit[:9]}" if facts.commit else ""
    earlier = Earlier(label, facts.started, facts.commit, figures)
    return replace(run, before=before, earlier=earlier)


def _asked(row: Row) -> Asked:
    return row.gate, row.subject, row.part


def _place(row: Row) -> Place:
    provenance = (row.data or {}).get("provenance") or {}
    facts = {name: str(value) for name, value in provenance.items()}
    return Place.of(row.gate, facts | {"machine": machine_of(facts)})


def to_json(run: Run) -> str:
    """A run as strict JSON, the worst verdict first; ASCII, and texts as people may read them."""
    facts = shown(strict(vars(run.facts)))
    verdicts = [_row(row) for row in ranked(run.rows)]
    data = {"format": FORMAT, "header": run.header, "run": facts, "verdicts": verdicts}
    return json.dumps(data, allow_nan=False, indent=1) + "\n"


def read_run(path: Path) -> Run:
    """The run that a file of `--ane-report=run.json` holds.

    Raises:
        ReportError: it is missing, too large, damaged, or another file.
    """
    written = path if path.suffix == ".json" else "run.json"
    how = f"a run writes one with --ane-report={written}"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ReportError(f"{path} has more bytes than any report should.")
        return from_json(path.read_text())
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}); {how}.") from None
    except ValueError as error:
        raise ReportError(f"{path} is no report of a run ({error}); {how}.") from None


def from_json(text: str) -> Run:
    """The run that `to_json` made a text of; texts as people may read them, whoever wrote them.

    Raises:
        ValueError: it is none, or of another version.
    """
    data = parse_shown(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"it has not format {FORMAT}")
    facts = _valid(_FACTS, data.get("run"), "run")
    verdicts = _valid(_ROWS, data.get("verdicts"), "verdicts")
    rows = [_read_row(row, f"verdicts.{number}") for number, row in enumerate(verdicts)]
    return Run(str(data.get("header", "")), tuple(rows), facts)


_FACTS = TypeAdapter(Facts)
_ROW = TypeAdapter(Row)
_ROWS = TypeAdapter(list[dict[str, Any]])


def _valid(kind: TypeAdapter[T], data: object, place: str) -> T:
    try:
        return kind.validate_python(data)
    except ValidationError as error:
        inner = error.errors(include_url=False, include_input=False)[0]["loc"]
        raise ValueError(f"{'.'.join(map(str, (place, *inner)))} is missing or damaged") from None


def verdict_of(data: Mapping[str, Any] | None) -> Verdict | None:
    """The verdict that `report.verdict.to_json` made data of; None where there is none.

    Raises:
        ReportError: the data are damaged.
    """
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


_OF_ROW = ("warned", "allowed", "marks", "place", "test", "part")
"""What a row has besides its verdict."""


def _row(row: Row) -> dict[str, Any]:
    words = {name: getattr(row, name) for name in ("gate", "subject", "status", "summary")}
    words["reasons"] = list(row.reasons)
    more = {name: value for name in _OF_ROW if (value := getattr(row, name))}
    return {**words, **(row.data or {}), **shown(strict(more))}


def _read_row(data: dict[str, Any], place: str) -> Row:
    names = ("gate", "subject", "status", "summary", "reasons", *_OF_ROW)
    row = {name: data[name] for name in names if name in data}
    row["data"] = data if "figures" in data else None
    return _valid(_ROW, row, place)
