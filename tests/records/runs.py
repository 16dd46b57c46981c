"""Memories of a few runs, as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pytest_ane.plugin._reports import of_row
from pytest_ane.records.record import Record
from pytest_ane.records.run import Facts, Writer
from pytest_ane.report.run import Run, read_run, verdict_data

ENVIRONMENT = {"backend": "cpu", "chip": "AMD EPYC", "os": "Linux x86_64", "numpy": "2.3.0"}


class Line(NamedTuple):
    """A record, and the run that it is of."""

    facts: Facts
    record: Record


def line(number: int, figures: Mapping[str, float | str], **more: Any) -> Line:
    """A record of run `number`, a day after the one before; `commit` is the run's."""
    started = f"2026-01-{number + 1:02}T10:00:00Z"
    commit = more.pop("commit", f"{number:040x}")
    environment = ENVIRONMENT | {
        name: more.pop(name) for name in ("backend", "chip", "os", "numpy") if name in more
    }
    known: dict[str, Any] = {
        "gate": "fidelity",
        "subject": "mini:L01",
        "time": datetime.fromisoformat(started.replace("Z", "+00:00")).astimezone(timezone.utc),
        "files": {"L01/weight.bin": "a" * 64},
        "environment": environment,
        "figures": figures,
    }
    facts = Facts(id=f"{number:032x}", started=started, commit=commit, clean=True)
    return Line(facts, Record(**known | more))


def write(folder: Path, *lines: Line) -> Path:
    """A memory of these lines, a file for each run."""
    writers: dict[str, Writer] = {}
    for facts, record in lines:
        if facts.id not in writers:
            writers[facts.id] = Writer(folder, facts)
        writers[facts.id].add(record)
    return folder


def file_of(folder: Path, number: int) -> Path:
    """The file of a run."""
    (file,) = folder.glob(f"2026-01-{number + 1:02}*.jsonl")
    return file


def save_run(path: Path, run: Run) -> Path:
    """A run in a file, as the plugin writes it."""
    path.unlink(missing_ok=True)
    writer = Writer(path, replace(run.facts, header=run.header))
    for row in run.rows:
        writer.add(of_row(row))
    writer.close(replace(run.facts, exit_code=run.facts.exit_code or 0))
    return path


def reread(run: Run) -> Run:
    """A run as its file holds it."""
    with TemporaryDirectory() as folder:
        return read_run(save_run(Path(folder, "run.jsonl"), run))


def verdicts(path: Path) -> list[dict[str, Any]]:
    """The verdicts in the file of a run, the worst first."""
    return [
        {"gate": row.gate, "subject": row.subject, **verdict_data(row)}
        for row in read_run(path).rows
    ]
