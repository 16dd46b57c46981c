"""`pytest-ane report`: make the page of a recorded run, or write an experiment up.

A write-up begins with `--intent`, before the run, and `--writeup` fills in what the run came to.
Nothing is built or measured by either.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Output
from pytest_ane.manifest import select
from pytest_ane.manifest.problems import label
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.project.entries import read_manifest
from pytest_ane.records.history import courses, last_before
from pytest_ane.records.memory import Memory
from pytest_ane.records.run import checkout
from pytest_ane.report import writeups
from pytest_ane.report.charts.run import pictures_of, svg
from pytest_ane.report.formats import DOCUMENTS, as_html, format_of, read_document
from pytest_ane.report.run import Run, against, places_of, read_run
from pytest_ane.report.writeups import Head, WriteUp
from pytest_ane.tools._writeup import Answer, blank, caveats, intent_of, last_of, outcome, sections

EXAMPLE = "pytest-ane report run.jsonl bound.json -o report.html"
_DEFAULT = "shards.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, what is shown with it, and the page or the write-up."""
    add = parser.add_argument
    words = (
        "the run, a file of --ane-report=run.jsonl (with --writeup its own may be left out); "
        "then what recommend, bound or drift printed with --json"
    )
    add("files", nargs="*", type=Path, metavar="FILE", help=words)
    add("-o", "--out", type=Path, metavar="FILE", help="the page; its end decides: .html or .md")
    words = "an earlier run, to compare; or a folder of many runs, whose figures are drawn"
    add("--against", type=Path, metavar="FILE|DIR", help=words)
    words = "begin a write-up before the run: what you want to find out, in quotes"
    add("--intent", metavar="TEXT", help=words)
    words = "fill in a write-up after the run, by number, name or path (default: the newest open)"
    add("--writeup", nargs="?", const="", metavar="NAME", help=words)
    add_shared(parser, "shards", help="--intent: what it is about (default: all)")
    add_shared(parser, "manifest")
    words = "of write-ups (default: experiments, next to the manifest)"
    add("--folder", type=Path, metavar="DIR", help=words)


def run(options: argparse.Namespace) -> Output:
    """Write the page of a run, begin a write-up, or finish it; a red result is a result."""
    ways = {_page: options.out, _begin: options.intent, _finish: options.writeup}
    asked = [way for way, value in ways.items() if value is not None]
    if len(asked) != 1:
        raise ReportError(
            "report takes one of -o FILE for the page of a run, --intent TEXT to begin a write-up, "
            "and --writeup to fill it in."
        )
    if options.against is not None and asked != [_page]:
        raise ReportError("--against is for a page; a write-up names the one before it itself.")
    if options.files and asked == [_begin]:
        raise ReportError(
            "--intent takes one text, in quotes, and no file: a write-up begins before its run."
        )
    return (yield from asked[0](options))


def _page(options: argparse.Namespace) -> Output:
    out: Path = options.out
    if not options.files:
        raise ReportError(f"-o {out}: name the run, a file of --ane-report=run.jsonl.")
    recorded, *others = options.files
    if out.resolve() in map(Path.resolve, (*options.files, *filter(None, [options.against]))):
        raise ReportError(f"-o {out}: would overwrite what it is made from; name another file.")
    format = format_of(out)
    found = read_run(recorded)
    documents = _documents(found, others, "compare with it by --against")
    if format is not as_html and (documents or options.against):
        raise ReportError(f"-o {out}: only .html shows more than the run itself.")
    found = replace(found, documents=tuple(documents))
    if options.against and options.against.is_dir():
        found = _remembered(found, options.against)
    elif options.against:
        found = against(found, read_run(options.against))
    text = format(found).encode()
    writeups.write(out, text)
    yield f"wrote {out} ({len(text):,} bytes)"
    return {"written": out, "verdicts": len(found.rows), "documents": others}


def _models(found: Run) -> set[str]:
    return {row.subject.partition(":")[0] for row in found.rows if row.gate}


def _documents(found: Run, files: Iterable[Path], of_run: str) -> list[dict[str, Any]]:
    """What other commands printed; `of_run` says what to do with a run among them."""
    return [read_document(path, _models(found), f"It is a run; {of_run}.") for path in files]


def _remembered(found: Run, folder: Path) -> Run:
    memory = Memory(folder, sorted(_models(found)))
    # The run's own place; of one that has no file there, before all that are not older.
    started = found.facts.started.removesuffix("Z")
    since = [one for one in memory.runs if one.id == found.facts.id or one.started >= started]
    own = min(since, key=lambda one: (one.id != found.facts.id, one.started)).id if since else ""
    earlier = last_before(memory, own, places_of(found))
    return replace(found, earlier=earlier, courses=tuple(courses(memory)))


def _begin(options: argparse.Namespace) -> Output:
    file, folder = options.manifest or Path(_DEFAULT), _folder(options)
    intent = intent_of(options.intent)
    select(read_manifest(file), options.shards, "--shards")
    path = writeups.next_file(folder, options.intent)
    head = Head(
        intent=intent,
        recorded=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        manifest=writeups.relative(file, folder),
        shards=options.shards,
        commit=checkout(file.absolute().parent)[0],
    )
    writeup = WriteUp(path, head, blank(writeups.number(path), intent))
    writeup.save()
    writeups.write(writeup.beside(".toml"), file.read_bytes())
    named = [f"--ane-manifest={options.manifest}"] if options.manifest is not None else []
    words = ["pytest", *named, f"--ane-shards={options.shards}", "-m", "gate"]
    command = shlex.join([*words, f"--ane-report={label(writeup.beside('.jsonl'))}"])
    # `--writeup` looks in the default folder.
    elsewhere = options.folder is not None or options.manifest is not None
    yield f"wrote {label(path)}"
    yield f"next: {command}"
    yield "then: pytest-ane report --writeup" + (f" {shlex.quote(label(path))}" * elsewhere)
    return {"file": path, "number": writeups.number(path), "command": command, **vars(head)}


def _finish(options: argparse.Namespace) -> Output:
    others = list(options.files)
    file = others.pop(0) if others and others[0].suffix != ".json" else None
    folder = _folder(options)
    name = options.writeup
    path = writeups.find(folder, name) if name else writeups.unfinished(folder)
    writeup = writeups.read(path)
    own, kept = writeup.beside(".jsonl"), writeup.beside(".toml")
    answered = read_run(file or own)
    places = {name: writeup.beside(f".{name}.json") for name in DOCUMENTS}
    others = [*filter(Path.is_file, places.values()), *others]
    read_all = _documents(answered, others, "name it first")
    documents = {places[document["command"]]: document for document in read_all}
    before = kept.read_bytes() if kept.is_file() else None
    answer = Answer(writeup, answered, before, last_of(writeup, answered))
    if answer.gated and not any(map(answer.about, answer.gated)):
        raise ReportError(
            f"The run gated {answered.facts.selection or 'other shards'}, and "
            f"{writeup.path.stem} is about {writeup.head.shards}; name the run that answers it."
        )
    if file is not None and file.resolve() != own.resolve():
        data = file.read_bytes()
        if own.exists() and own.read_bytes() != data:
            raise ReportError(
                f"{label(own)} holds another run than {file}; remove it, or leave {file} out."
            )
        writeups.write(own, data)
    for copy, document in documents.items():
        writeups.write(copy, f"{json.dumps(document)}\n".encode())
    charts, without = _charts(answer, documents.values())
    answer = replace(answer, charts=charts)
    head = replace(writeup.head, run=answered.facts.begun or "unknown")
    new = replace(writeup, head=head).with_sections(sections(answer))
    new.save()
    (word, reason), warnings = outcome(answer), list(caveats(answer))
    yield f"wrote {label(new.path)}"
    yield f"{word}: {reason}"
    yield from (*warnings, *filter(None, [without]))
    red = sum(row.red for row in answered.rows)
    return {"file": new.path, "run": own, "outcome": word.lower(), "red": red, "caveats": warnings}


def _charts(
    answer: Answer, documents: Iterable[Mapping[str, Any]]
) -> tuple[tuple[tuple[str, str, str], ...], str]:
    run = replace(answer.run, documents=tuple(documents))
    made: dict[Path, tuple[str, str, str]] = {}
    for picture in pictures_of(against(run, answer.last[1]) if answer.last else run):
        name = writeups.slug(picture.title)
        file = answer.writeup.beside(f".{name}.svg")
        if file in made:
            file = answer.writeup.beside(f".{name}-{len(made) + 1}.svg")
        try:
            writeups.write(file, svg(picture, "white").encode())
        except ReportError as error:
            return (), str(error)
        made[file] = (picture.title, file.name, picture.description)
    for old in {*answer.writeup.path.parent.glob(f"{answer.writeup.path.stem}.*.svg")} - {*made}:
        old.unlink()
    return tuple(made.values()), ""


def _folder(options: argparse.Namespace) -> Path:
    return options.folder or (options.manifest or Path(_DEFAULT)).parent / writeups.FOLDER
