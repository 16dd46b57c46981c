"""`pytest-ane writeup new` and `finish`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_manifest, add_shards
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import ReportError

if TYPE_CHECKING:
    from pytest_ane.report.run import Run
    from pytest_ane.report.writeups import WriteUp
    from pytest_ane.tools._writeup import Answer

HELP = "write an experiment up: its intent before the run, its result after it"
EXAMPLE = "pytest-ane writeup new '4-bit palettes keep L01 right' --shards L01"
_DEFAULT = "shards.toml"
_OF_RUN = "It is a run; name it after the write-up, without --more."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action, the intent or the write-up, and the run."""
    parser.add_argument(
        "action", choices=("new", "finish"), help="record an intent, or fill in what a run came to"
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="INTENT|WRITEUP",
        help="new: the intent; finish: a write-up by number, name or path (default: the newest "
        "unfinished one)",
    )
    parser.add_argument(
        "run_file",
        nargs="?",
        type=Path,
        metavar="RUN.jsonl",
        help="finish: what the run wrote with --ane-report (default: the write-up's own)",
    )
    add_shards(parser, "new: what the intent is about (default: all)")
    add_manifest(parser)
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="default: experiments, next to the manifest"
    )
    parser.add_argument(
        "--more",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.json",
        help="finish: what recommend, bound, drift or speculate printed with --json; may be given "
        "again",
    )


def run(options: argparse.Namespace) -> Output:
    """Begin a write-up, or finish it; nothing is built or measured.

    A red result is a result.

    Raises:
        AneError: one sentence; nothing is written then.
    """
    if options.action == "finish":
        return (yield from _finish(options))
    if options.run_file is not None or options.what is None:
        raise ReportError(
            "writeup new takes one intent, in quotes; pytest-ane writeup --help shows how."
        )
    return (yield from _new(options))


def _new(options: argparse.Namespace) -> Output:
    from datetime import datetime, timezone

    from pytest_ane.manifest import select
    from pytest_ane.project.entries import read_manifest
    from pytest_ane.records.git import checkout
    from pytest_ane.report.writeups import Head, WriteUp, next_file, number, relative
    from pytest_ane.tools._writeup import blank, intent_of

    file, folder = options.manifest or Path(_DEFAULT), _folder(options)
    intent = intent_of(options.what)
    select(read_manifest(file), options.shards, "--shards")
    path = next_file(folder, options.what)
    head = Head(
        intent=intent,
        recorded=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        manifest=relative(file, folder),
        shards=options.shards,
        commit=checkout(file.absolute().parent)[0],
    )
    writeup = WriteUp(path, head, blank(number(path), intent))
    writeup.save()
    _write(writeup.beside(".toml"), file.read_bytes())
    words = ["pytest"]
    if options.manifest is not None:
        words.append(f"--ane-manifest={options.manifest}")
    words += [f"--ane-shards={options.shards}", "-m", "gate"]
    command = shlex.join([*words, f"--ane-report={_typed(writeup.beside('.jsonl'))}"])
    # `finish` looks in the default folder.
    elsewhere = options.folder is not None or options.manifest is not None
    yield f"wrote {_typed(path)}"
    yield f"next: {command}"
    yield "then: pytest-ane writeup finish" + (f" {shlex.quote(_typed(path))}" * elsewhere)
    return {"file": path, "number": number(path), "command": command, **vars(head)}


def _finish(options: argparse.Namespace) -> Output:
    from pytest_ane.report.run import read_run
    from pytest_ane.report.writeups import find, read, unfinished
    from pytest_ane.tools._writeup import Answer, caveats, last_of, outcome, sections

    name, file = options.what, options.run_file
    if file is None and name is not None and name.endswith(".jsonl"):
        name, file = None, Path(str(name))
    folder = _folder(options)
    writeup = read(find(folder, name) if name else unfinished(folder))
    own, kept = writeup.beside(".jsonl"), writeup.beside(".toml")
    answered = read_run(file or own)
    documents = _documents(writeup, answered, options.more)
    before = kept.read_bytes() if kept.is_file() else None
    answer = Answer(writeup, answered, before, last_of(writeup, answered))
    _check(answer)
    _keep(file, own)
    for copy, document in documents.items():
        _write(copy, f"{json.dumps(document)}\n".encode())
    charts, without = _charts(answer, documents.values())
    answer = replace(answer, charts=charts)
    head = replace(writeup.head, run=answered.facts.begun or "unknown")
    new = replace(writeup, head=head).with_sections(sections(answer))
    new.save()
    result, warnings = outcome(answer), list(caveats(answer))
    yield f"wrote {_typed(new.path)}"
    yield f"{result.word}: {result.reason}"
    yield from warnings
    if without:
        yield without
    red = sum(row.red for row in answered.rows)
    return {
        "file": new.path, "run": own, "outcome": result.word.lower(), "red": red,
        "caveats": warnings,
    }  # fmt: skip


def _documents(writeup: WriteUp, run: Run, given: list[Path]) -> dict[Path, dict[str, Any]]:
    """What other commands printed by the files that keep it: the kept ones, and the new ones."""
    from pytest_ane.report.formats import DOCUMENTS, read_document

    models = {row.subject.partition(":")[0] for row in run.rows if row.gate}
    kept = {name: writeup.beside(f".{name}.json") for name in DOCUMENTS}
    files = [file for file in kept.values() if file.is_file()]
    documents = [read_document(file, models, _OF_RUN) for file in (*files, *given)]
    return {kept[document["command"]]: document for document in documents}


def _check(answer: Answer) -> None:
    """Refuse a run that gated other shards altogether.

    Raises:
        ReportError: it did.
    """
    if answer.gated and not any(map(answer.about, answer.gated)):
        raise ReportError(
            f"The run gated {answer.run.facts.selection or 'other shards'}, and "
            f"{answer.writeup.path.stem} is about {answer.writeup.head.shards}; name the run that "
            "answers it."
        )


def _charts(
    answer: Answer, documents: Iterable[Mapping[str, Any]]
) -> tuple[tuple[tuple[str, str, str], ...], str]:
    """Title, file and description of each picture, now written; or why there are none."""
    from pytest_ane.report.charts.picture import svg
    from pytest_ane.report.charts.run import pictures_of
    from pytest_ane.report.run import against
    from pytest_ane.report.writeups import slug

    run = replace(answer.run, documents=tuple(documents))
    made: dict[Path, tuple[str, str, str]] = {}
    for picture in pictures_of(against(run, answer.last[1]) if answer.last else run):
        name = slug(picture.title)
        file = answer.writeup.beside(f".{name}.svg")
        if file in made:
            file = answer.writeup.beside(f".{name}-{len(made) + 1}.svg")
        try:
            _write(file, svg(picture, "white").encode())
        except ReportError as error:
            return (), str(error)
        made[file] = (picture.title, file.name, picture.description)
    for old in {*answer.writeup.path.parent.glob(f"{answer.writeup.path.stem}.*.svg")} - {*made}:
        old.unlink()
    return tuple(made.values()), ""


def _keep(given: Path | None, own: Path) -> None:
    """Copy a run that was named to the write-up's own file.

    Raises:
        ReportError: there is another run in it, or it cannot be written.
    """
    if given is None or given.resolve() == own.resolve():
        return
    data = given.read_bytes()
    if own.exists() and own.read_bytes() != data:
        raise ReportError(
            f"{_typed(own)} holds another run than {given}; remove it, or leave {given} out."
        )
    _write(own, data)


def _write(file: Path, data: bytes) -> None:
    from pytest_ane.mlprogram.atomic import write_atomically

    try:
        write_atomically(file, data)
    except OSError as error:
        raise ReportError(f"{_typed(file)} cannot be written: {error.strerror}.") from None


def _folder(options: argparse.Namespace) -> Path:
    from pytest_ane.report.writeups import FOLDER

    if options.folder is not None:
        return Path(options.folder)
    return (options.manifest or Path(_DEFAULT)).parent / FOLDER


def _typed(path: Path) -> str:
    """A path as it is typed here."""
    near = os.path.relpath(path)
    return str(path) if near.startswith(os.pardir) else near
