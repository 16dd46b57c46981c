"""The record of each gate's test, and the files that a run's records are written to.

A test keeps what it measured in its stash (`note`); its report carries that as one line of JSON to
the process that started the run (`of_report`), which appends it to the files of `--ane-report`.
"""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mlprogram.errors import AneError, EvidenceError, ReportError
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import _options as options
from pytest_ane.plugin._items import gate_of, part_of, subject_of
from pytest_ane.records.git import checkout
from pytest_ane.records.record import Record, plain, question
from pytest_ane.records.run import Facts, Writer, gate_files, plugin_digest, versions
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Run, read_run, verdict_data

if TYPE_CHECKING:
    from pytest_ane.plugin._workspace import Workspace

MEASURED = pytest.StashKey[Record]()
"""What a test measured, or the evidence that it judges, where it is to be kept."""
LINE = pytest.StashKey[bytes]()
"""A test's record, packed: reports carry it to the process that writes."""


def note(
    item: pytest.Item,
    space: Workspace,
    verdict: Verdict,
    recorded: Record | None,
    machine: Mapping[str, str],
) -> None:
    """Keep a test's record, where the run has a file for it; limits of figures are left out.

    Args:
        item: the test.
        space: the run's workspace.
        verdict: the gate's.
        recorded: what was judged, if it was recorded.
        machine: provenance of the backend that measured, if nothing was.
    """
    if not space.keeps_records or not isinstance(item, pytest.Function):
        return
    gate, name = gate_of(item), subject_of(item)
    known = GATES.get(gate)
    derived = known.derived if known else ()
    figures = {f.name: f.value for f in verdict.figures if f.name not in derived}
    measured = recorded or item.stash.get(MEASURED, None)
    if measured is not None and (measured.gate, measured.subject) == (gate, name):
        record = measured
    else:
        record = Record(
            gate=gate,
            subject=name,
            time=datetime.now(timezone.utc),
            files=space.known_files(name),
            asked=_asked(space, gate, name),
            commit=space.commit,
        )
    facts: dict[str, Any] = {**record.environment, **machine}
    if recorded is None:
        facts |= {**space.identity, "python": platform.python_version()}
    # A record says of itself which arithmetic it was computed in, not what its verdict compares.
    facts |= {k: v for k, v in verdict.provenance.items() if k != "arithmetic"}
    runs = known is None or known.by_device or "backend" in verdict.provenance
    environment = {key: str(value) for key, value in facts.items()
                   if str(value) and key != "artifact" and (runs or key != "backend")}  # fmt: skip
    record = replace(record, part=part_of(item), figures=figures, environment=environment)
    item.stash[LINE] = zlib.compress(record.to_line())


def _asked(space: Workspace, gate: str, name: str) -> dict[str, Any]:
    """Empty for a gate of the user's own, and where nobody can tell."""
    subjects: tuple[Subject, ...] = (*space.shards, *space.manifest.models)
    subject = next((subject for subject in subjects if subject.qualified == name), None)
    if gate not in GATES or subject is None:
        return {}
    model = space.manifest.model_of(name.partition(":")[0])
    try:
        return plain(question(gate, subject, model, lambda: space.model(model.name).identity))
    except (AneError, OSError):
        return {}


def of_report(report: pytest.TestReport | pytest.CollectReport, row: Row) -> Record:
    """The record of a test's report, with the verdict that its row shows."""
    line = getattr(report, "ane_record", None)
    if line is not None and row.gate:
        record = Record.from_data(json.loads(zlib.decompress(line)))
    else:
        record = of_row(row)
    verdict = {**verdict_data(row), "outcome": report.outcome}
    return replace(record, verdict=verdict)


def of_row(row: Row) -> Record:
    """The record of a row without a test, or of a test that came to no measurement."""
    now = datetime.now(timezone.utc)
    subject, part = printable(row.subject, LONGEST), printable(row.part, LONGEST)
    return Record(gate=row.gate, subject=subject, time=now, part=part, verdict=verdict_data(row))


class RecordFiles:
    """The files of a run, and the run whose file one of them replaces.

    Attributes:
        facts: of the run, before it ended.
        history: the folder of the memory that one of them lies in; None where there is none.
        before: what was in the file that is replaced; None for nothing, or for another format.
        lost: why records were not written; empty where all were.

    Raises:
        EvidenceError: another file lies in the place of one, or it cannot be written.
    """

    def __init__(
        self, config: pytest.Config, space: Workspace, header: str, say: Callable[[str], None]
    ) -> None:
        self.facts = _facts(config, space, header)
        self.before: Run | None = None
        self.lost = ""
        paths = options.record_files(config)
        for path in paths:
            if path.is_file():
                try:
                    self.before = read_run(path)
                except ReportError as error:
                    say(f"ane: the report compares with no earlier run: {error}")
        self._writers = [Writer(path, self.facts) for path in paths]
        folders = [writer.path.parent for writer in self._writers if writer.brief]
        self.history: Path | None = next(iter(folders), None)

    def add(self, record: Record) -> None:
        """Append a record to each file; one that is lost fails no test."""
        for writer in self._writers:
            if not writer.brief or record.figures:
                self._write(lambda writer=writer: writer.add(record))  # type: ignore[misc]

    def close(self, facts: Facts) -> None:
        """Append the end to each file."""
        for writer in self._writers:
            self._write(lambda writer=writer: writer.close(facts))  # type: ignore[misc]

    def lines(self, verbosity: int) -> Sequence[str]:
        """That records were lost; under `-v` how many the memory got."""
        if self.lost:
            return [printable(f"ane: the records of the run: {self.lost}", LONGEST)]
        written = [writer for writer in self._writers if writer.brief and verbosity > 0]
        return [
            printable(f"ane: {each.count} record{'' if each.count == 1 else 's'} in {each.path}")
            for each in written
        ]

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except EvidenceError as error:
            self.lost = str(error)


def _facts(config: pytest.Config, space: Workspace, header: str) -> Facts:
    root, path = config.rootpath, space.manifest.path.absolute()
    text = path.read_bytes() if path.is_file() else b""
    commit, clean = checkout(options.project_folder(config, space.manifest.path))
    return Facts(
        id=space.run_id,
        started=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        header=header,
        arguments=tuple(map(str, config.invocation_params.args)),
        selection=space.selection,
        manifest=path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name,
        digest=sha256(text).hexdigest() if text else "",
        manifest_text=tuple(text.decode("utf-8-sig", errors="replace").expandtabs(4).splitlines()),
        gates=gate_files(root) if space.keeps_records else {},
        plugin=plugin_digest() if space.keeps_records else "",
        commit=commit,
        clean=clean,
        versions=versions(),
    )
