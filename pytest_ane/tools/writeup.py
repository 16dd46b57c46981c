"""`pytest-ane writeup new`, `finish` and `renumber`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_manifest, add_shards
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import AneError, ReportError

if TYPE_CHECKING:
    from pytest_ane.manifest import Manifest
    from pytest_ane.report.run import Run
    from pytest_ane.tools._writeup.answer import Answer
    from pytest_ane.tools._writeup_data import WriteUp

HELP = "write an experiment up: its intent before the run, its result after it"
EXAMPLE = "pytest-ane writeup new '4-bit palettes keep L01 right' --shards L01"
_DEFAULT = "shards.toml"
_OF_RUN = "It is a run; name it after the write-up, without --more."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action, the intent or the write-up, and the run."""
    parser.add_argument(
        "action",
        choices=("new", "finish", "renumber"),
        help="record an intent, fill in what a run came to, or give another number",
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="INTENT|WRITEUP",
        help="new: the intent; else a write-up by number, name or path (finish: default the newest "
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
    """Begin a write-up, finish it, or give it another number; nothing is built or measured.

    A red result is a result.

    Raises:
        AneError: one sentence; nothing is written then.
    """
    action, what = options.action, options.what
    if action != "finish" and (options.run_file is not None or what is None):
        needs = "takes one intent, in quotes" if action == "new" else "takes one write-up"
        raise ReportError(f"writeup {action} {needs}; pytest-ane writeup --help shows how.")
    if action == "new":
        return (yield from _new(options))
    if action == "renumber":
        return (yield from _renumber(options))
    return (yield from _finish(options))


def _new(options: argparse.Namespace) -> Output:
    from datetime import datetime, timezone

    from pytest_ane.manifest import select
    from pytest_ane.mlprogram.digests import file_digest
    from pytest_ane.project.entries import read_manifest
    from pytest_ane.records.git import checkout
    from pytest_ane.tools._writeup.sections import blank, intent_of
    from pytest_ane.tools._writeup_data import (
        Head,
        WriteUp,
        digest_of,
        file_of,
        next_number,
        numbering,
        relative,
        slug,
    )

    file, folder = options.manifest or Path(_DEFAULT), _folder(options)
    intent = intent_of(options.what)
    select(read_manifest(file), options.shards, "--shards")
    commit, clean = checkout(file.absolute().parent)
    with numbering(folder):
        number = next_number(folder)
        path = file_of(folder, f"{number:03d}-{slug(options.what)}")
        head = Head(
            number=number,
            intent_sha256=digest_of(intent),
            recorded=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
            manifest=relative(file, folder),
            manifest_sha256=file_digest(file),
            shards=options.shards,
            commit=commit,
            clean=clean,
        )
        writeup = WriteUp(path, head, blank(number, intent))
        writeup.save()
        _write(writeup.beside(".toml"), file.read_bytes())
    command = _command(options, writeup)
    yield f"wrote {_shown(path)}"
    yield f"next: {command}"
    yield "then: pytest-ane writeup finish" + _places(options, writeup)
    yield from _collisions(folder)
    return {"file": path, "number": number, "command": command, **vars(head)}


def _command(options: argparse.Namespace, writeup: WriteUp) -> str:
    """The run that answers the intent."""
    words = ["pytest"]
    if options.manifest is not None:
        words.append(f"--ane-manifest={options.manifest}")
    words += [f"--ane-shards={options.shards}", "-m", "gate"]
    return shlex.join([*words, f"--ane-report={_shown(writeup.beside('.jsonl'))}"])


def _places(options: argparse.Namespace, writeup: WriteUp) -> str:
    """What `finish` takes to find the write-up again."""
    given = options.folder is not None or options.manifest is not None
    return f" {shlex.quote(_shown(writeup.path))}" if given else ""


def _renumber(options: argparse.Namespace) -> Output:
    from pytest_ane.tools._writeup_data import find, read, renumber

    old = read(find(_folder(options), options.what))
    new = renumber(old)
    yield f"{_shown(old.path)} is now {_shown(new.path)}"
    yield from _collisions(new.path.parent)
    return {"old": old.path, "file": new.path, "number": new.head.number}


def _finish(options: argparse.Namespace) -> Output:
    from dataclasses import replace

    from pytest_ane.mlprogram.digests import file_digest
    from pytest_ane.report.run import read_run
    from pytest_ane.tools._writeup.answer import caveats
    from pytest_ane.tools._writeup.sections import Sections
    from pytest_ane.tools._writeup_data import find, read, unfinished

    name, file = options.what, options.run_file
    if file is None and name is not None and name.endswith(".jsonl"):
        name, file = None, Path(str(name))
    folder = _folder(options)
    writeup = read(find(folder, name) if name else unfinished(folder))
    own = writeup.beside(".jsonl")
    answered = read_run(file or own)
    documents = _documents(writeup, answered, options.more)
    answer = _answer(writeup, answered, documents.values())
    _keep(file, own)
    for kept, document in documents.items():
        _write(kept, f"{json.dumps(document)}\n".encode())
    charts, without = _charts(answer)
    answer = replace(answer, charts=charts)
    parts = Sections(answer).parts()
    head = replace(writeup.head, run_sha256=file_digest(own))
    new = replace(writeup, head=head).with_parts(parts)
    new.save()
    warnings = list(caveats(answer))
    yield f"wrote {_shown(new.path)}"
    yield from warnings
    left = [part for part in parts if part not in new.parts]
    if left:
        yield f"left as they are, for they have no marks: {', '.join(left)}"
    if without:
        yield without
    yield from _collisions(new.path.parent)
    red = sum(row.red for row in answer.run.rows)
    return {"file": new.path, "run": own, "red": red, "caveats": warnings, "left": left}


def _documents(writeup: WriteUp, run: Run, given: list[Path]) -> dict[Path, dict[str, Any]]:
    """What other commands printed by the files that keep it: the kept ones, and the new ones."""
    from pytest_ane.report.documents import COMMANDS, read_document

    models = {row.subject.partition(":")[0] for row in run.rows if row.gate}
    kept = {name: writeup.beside(f".{name}.json") for name in COMMANDS}
    files = [file for file in kept.values() if file.is_file()]
    documents = [read_document(file, models, _OF_RUN) for file in (*files, *given)]
    return {kept[document["command"]]: document for document in documents}


def _answer(writeup: WriteUp, run: Run, documents: Iterable[Mapping[str, Any]]) -> Answer:
    """All that is known of a write-up's run.

    Raises:
        ReportError: the run gated other shards altogether.
    """
    from pytest_ane.tools._writeup.answer import Answer, changed_keys, last_of

    before = _file_of(writeup, writeup.head.manifest_sha256)
    now = _file_of(writeup, run.facts.digest)
    due = _due(before, writeup)
    gated = {row.subject for row in run.rows if row.gate}
    if due and gated and not gated & {*due, *(id.partition(":")[0] for id in due)}:
        raise ReportError(
            f"The run gated {run.facts.selection or 'other shards'}, and {writeup.stem} is about "
            f"{writeup.head.shards}; name the run that answers it."
        )
    return Answer(
        writeup,
        run,
        file=writeup.beside(".jsonl").name,
        last=last_of(writeup, run),
        due=due,
        ungated=_ungated(now, writeup, gated),
        changes=changed_keys(before, now) if before and now else None,
        documents=tuple(documents),
    )


def _file_of(writeup: WriteUp, digest: str) -> Path | None:
    """The manifest of a digest, where it is still there: the file itself, or as it was recorded."""
    from pytest_ane.mlprogram.digests import file_digest

    files = (writeup.manifest, writeup.beside(".toml"))
    return next((file for file in files if file.is_file() and file_digest(file) == digest), None)


def _manifest(file: Path | None, writeup: WriteUp) -> Manifest | None:
    """A manifest with paths as of its own folder; None where this version cannot read it."""
    from pytest_ane.manifest import parse
    from pytest_ane.project.entries import expanded

    if file is None:
        return None
    try:
        return expanded(parse(file.read_bytes().decode("utf-8-sig"), writeup.manifest))
    except (AneError, UnicodeDecodeError):
        return None


def _due(file: Path | None, writeup: WriteUp) -> tuple[str, ...] | None:
    """What was selected when the intent was recorded."""
    from pytest_ane.manifest import select

    if (manifest := _manifest(file, writeup)) is None:
        return None
    try:
        return tuple(shard.qualified for shard in select(manifest, writeup.head.shards))
    except AneError:
        return None


def _ungated(file: Path | None, writeup: WriteUp, gated: set[str]) -> dict[str, list[str]]:
    """Shards that have no verdict, of models of which some have."""
    manifest = _manifest(file, writeup)
    of_models = {
        m.name: [s.qualified for s in m.shards] for m in (manifest.models if manifest else ())
    }
    return {
        name: left
        for name, ids in of_models.items()
        if gated & {*ids} and (left := [id for id in ids if id not in gated])
    }


def _charts(answer: Answer) -> tuple[tuple[tuple[str, str, str], ...], str]:
    """Title, file and description of each picture, now written; or why there are none."""
    from dataclasses import replace

    from pytest_ane.tools._writeup_data import slug

    try:
        from pytest_ane.report.charts.picture import svg
        from pytest_ane.report.charts.run import pictures_of
        from pytest_ane.report.run import against
    except ReportError as error:
        return (), str(error)
    run = replace(answer.run, documents=answer.documents)
    made: dict[str, tuple[str, str, str]] = {}
    for picture in pictures_of(against(run, answer.last[1]) if answer.last else run):
        name = slug(picture.title)
        if name in made:
            name = f"{name}-{len(made) + 1}"
        file = answer.writeup.beside(f".{name}.svg")
        _write(file, svg(picture).encode())
        made[name] = (picture.title, file.name, picture.description)
    for old in answer.writeup.path.parent.glob(f"{answer.writeup.stem}.*.svg"):
        if old.name not in {file for _, file, _ in made.values()}:
            old.unlink()
    return tuple(made.values()), ""


def _keep(given: Path | None, own: Path) -> None:
    """Copy a run that was named to the write-up's own file.

    Raises:
        ReportError: there is another run in it, or it cannot be written.
    """
    from pytest_ane.mlprogram.digests import file_digest

    if given is None or given.resolve() == own.resolve():
        return
    if own.exists() and file_digest(own) != file_digest(given):
        raise ReportError(
            f"{_shown(own)} holds another run than {given}; remove it, or leave {given} out."
        )
    _write(own, given.read_bytes())


def _write(file: Path, data: bytes) -> None:
    from pytest_ane.mlprogram.atomic import write_atomically

    try:
        write_atomically(file, data)
    except OSError as error:
        raise ReportError(f"{_shown(file)} cannot be written: {error.strerror}.") from None


def _folder(options: argparse.Namespace) -> Path:
    from pytest_ane.tools._writeup_data import FOLDER

    if options.folder is not None:
        return Path(options.folder)
    return (options.manifest or Path(_DEFAULT)).parent / FOLDER


def _collisions(folder: Path) -> Iterator[str]:
    """Two write-ups of one number, and how one gets another."""
    from pytest_ane.tools._writeup_data import collisions, file_of

    for stems in collisions(folder):
        yield (
            f"{' and '.join(stems)} have one number; give one of them the next with: "
            f"pytest-ane writeup renumber {shlex.quote(_shown(file_of(folder, stems[-1])))}"
        )


def _shown(path: Path) -> str:
    """A path as it is typed here."""
    near = os.path.relpath(path)
    return str(path) if near.startswith(os.pardir) else near
