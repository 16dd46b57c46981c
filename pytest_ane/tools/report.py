"""`pytest-ane report`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import ReportError

if TYPE_CHECKING:
    from pytest_ane.report.run import Run

HELP = "make the page of a recorded run, with what other commands printed"
EXAMPLE = "pytest-ane report run.jsonl bound.json -o report.html"
_OF_RUN = "It is a run; compare with it by --against."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, what is shown with it, and the file to write."""
    parser.add_argument("recorded", type=Path, metavar="RUN", help="of --ane-report=run.jsonl")
    parser.add_argument(
        "documents",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="what recommend, bound, drift or speculate printed with --json",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="its end decides: .html or .md",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE|DIR",
        help="an earlier run, to compare; or a folder of many runs, whose figures are drawn",
    )


def run(options: argparse.Namespace) -> Output:
    """Read a run and what belongs to it, and write the report.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.mlprogram.atomic import write_atomically
    from pytest_ane.report.formats import format_of, read_document
    from pytest_ane.report.run import against, read_run

    out: Path = options.out
    inputs = (options.recorded, *options.documents, *filter(None, [options.against]))
    if any(_same(out, file) for file in inputs):
        raise ReportError(f"-o {out}: would overwrite what it is made from; name another file.")
    format = format_of(out)
    found = read_run(options.recorded)
    models = {row.subject.partition(":")[0] for row in found.rows if row.gate}
    documents = [read_document(path, models, _OF_RUN) for path in options.documents]
    if not format.compares and (documents or options.against):
        raise ReportError(f"-o {out}: only .html shows more than the run itself.")
    found = replace(found, documents=tuple(documents))
    if options.against and options.against.is_dir():
        found = _remembered(found, options.against, sorted(models))
    elif options.against:
        found = against(found, read_run(options.against))
    text = format.text(found)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
    except OSError as error:
        raise ReportError(f"{out} cannot be written ({error.strerror}); name another.") from None
    yield f"wrote {out} ({len(text.encode()):,} bytes)"
    return {"written": out, "verdicts": len(found.rows), "documents": options.documents}


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _remembered(found: Run, folder: Path, models: list[str]) -> Run:
    """With what the memory has of its models."""
    from pytest_ane.records.history import courses, last_before
    from pytest_ane.records.memory import Memory
    from pytest_ane.report.run import places_of

    memory = Memory(folder, models)
    # The run's own place; of one that has no file there, before all that are not older.
    started = found.facts.started.removesuffix("Z")
    since = [one for one in memory.runs if one.id == found.facts.id or one.started >= started]
    own = min(since, key=lambda one: (one.id != found.facts.id, one.started)).id if since else ""
    earlier = last_before(memory, own, places_of(found))
    return replace(found, earlier=earlier, courses=tuple(courses(memory)))
