"""Reports of a whole run: gathered from all workers, written once, in the first process."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from pytest_ane.gates.verdict import counted
from pytest_ane.manifest import Manifest
from pytest_ane.manifest.ids import without_function
from pytest_ane.manifest.problems import key_lines, line_of
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import AneError, EvidenceError, HistoryError, ReportError
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import _due, _options, _workspace
from pytest_ane.plugin._process import is_worker
from pytest_ane.plugin._summary import header_line, row_of
from pytest_ane.plugin._workspace import Workspace
from pytest_ane.records.history import courses, last_before
from pytest_ane.records.memory import Memory
from pytest_ane.records.record import Record
from pytest_ane.records.run import Facts, Writer, checkout, gate_files, plugin_digest, versions
from pytest_ane.report.formats import FORMATS, as_html, format_of
from pytest_ane.report.github import ROOM, Place, commands, summary
from pytest_ane.report.html.subjects import subjects
from pytest_ane.report.model_explorer import collection, node_data
from pytest_ane.report.run import Row, Run, against, places_of, read_run, verdict_data
from pytest_ane.report.writeups import FOLDER, writeups

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120
"""Characters of a file's name before its end."""


def write(folder: Path, run: Run, space: Workspace) -> Iterator[str]:
    """A graph and its node data for every shard that a gate judged; what could not be written."""
    shards = {shard.qualified: shard for shard in space.shards}
    for subject in subjects(run):
        shard = shards.get(subject.name)
        if shard is None or all(one.verdict is None for one in subject.judged):
            continue
        try:
            if (path := space.package(shard)) is None:
                continue
            made = collection(subject.name, read_any(path, weights=False, function=shard.function))
            name = _UNSAFE.sub("_", subject.name)[:_LONGEST]
            folder.mkdir(parents=True, exist_ok=True)
            parts = node_data(subject, made["graphs"])
            for word, data in {"json": made, **{f"{w}.json": d for w, d in parts.items()}}.items():
                text = json.dumps(data, allow_nan=False)
                write_atomically(folder / f"{name}.{word}", text.encode())
        except (AneError, OSError) as error:
            yield f"ane: no graph of {subject.name}: {error}"


def add_to(config: pytest.Config) -> None:
    """Report this run, unless it is part of another or runs nothing."""
    files = _options.report_files(config, records=False)
    for file in files:
        if file.suffix.lower() not in FORMATS:
            raise pytest.UsageError(
                f"--ane-report={file.name}: there is no such format; end the file's name with "
                ".html, .md or .jsonl, or a folder's with a slash."
            )
        _require_writable("--ane-report", file)
    if (graphs := _options.path(config, "ane_model_explorer")) is not None:
        _require_writable("--ane-model-explorer", graphs / "graph.json")
    if not is_worker(config) and not config.option.collectonly:
        config.pluginmanager.register(Reports(config, files, graphs), "ane-reports")


def _require_writable(option: str, file: Path) -> None:
    if file.is_dir():
        raise pytest.UsageError(f"{option}={file}: a folder has this name; name another file.")
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    try:
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise pytest.UsageError(
            f"{option}={file}: {folder} cannot be written ({error.strerror}); name another."
        ) from None


class Reports:
    """Keeps rows, of the terminal plugin's absence too, and writes them as formats have them."""

    def __init__(self, config: pytest.Config, files: Sequence[Path], graphs: Path | None) -> None:
        self._config = config
        self._files = files
        self._graphs = graphs
        self._rows: dict[str, Row] = {}
        self._started = time.monotonic()
        self._said: list[str] = []
        self._lost = ""
        self._before: Run | None = None  # The run whose file one of this run replaces.
        paths = _options.report_files(config, records=True)
        for path in filter(Path.is_file, paths):
            try:
                self._before = read_run(path)
            except ReportError as error:
                self._said.append(f"ane: the report compares with no earlier run: {error}")
        # What is tested is what was there at the start.
        self._facts = _facts(config, _workspace.of(config), header_line(config))
        try:
            self._writers = [Writer(path, self._facts) for path in paths]
        except EvidenceError as error:
            raise pytest.UsageError(f"--ane-report: {error}") from None

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Keep a test's verdict, that it broke down before, or what could not be collected."""
        if (row := row_of(report) or broken(report, self._config.rootpath)) is not None:
            self._rows[report.nodeid] = row
            self._add(of_report(report, row))

    pytest_collectreport = pytest_runtest_logreport

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, object, object]:
        """Write when all others have: annotations stand at the end of the log."""
        result = yield
        # The tests have their outcome by now, and keep it.
        self._facts = replace(self._facts, exit_code=int(session.exitstatus))
        try:
            ended = {2: "interrupted", 3: "an internal error"}.get(exitstatus, "")
            self._write(str(session.shouldfail or session.shouldstop or ended))
        except Exception as error:
            self._say(printable(f"ane: the report of the run failed: {error!r}"))
        return result

    def pytest_unconfigure(self) -> None:
        """Append the end to the records, when nothing more can come."""
        if self._facts.exit_code is None:
            self._facts = replace(self._facts, exit_code=int(pytest.ExitCode.INTERNAL_ERROR))
        for writer in self._writers:
            with suppress(EvidenceError):
                writer.close(self._facts)

    def pytest_terminal_summary(self) -> None:
        """That records were lost; under `-v` how many the memory got."""
        if self._lost:
            self._say(printable(f"ane: the records of the run: {self._lost}", LONGEST))
        for each in self._writers if self._config.get_verbosity() > 0 else ():
            if each.brief:
                self._say(printable(f"ane: {counted(each.count, 'record')} in {each.path}"))

    def _add(self, record: Record) -> None:
        for writer in self._writers:
            if not writer.brief or record.figures:
                try:
                    writer.add(record)
                except EvidenceError as error:
                    self._lost = str(error)

    def _write(self, stopped: str) -> None:
        space = _workspace.of(self._config)
        unreached = tuple(self._unreached(stopped))
        for row in unreached:
            self._add(of_row(row))
        self._facts = replace(
            self._facts,
            machine={key: str(value) for key, value in space.backend.provenance().items()},
            seconds=round(time.monotonic() - self._started, 3),
            stopped=stopped,
        )
        run = Run(self._facts.header, (*self._rows.values(), *unreached), self._facts)
        if any(format_of(file) is as_html for file in self._files):
            run = self._remembering(run, space)
        for file in self._files:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, format_of(file)(run).encode())
            except OSError as error:
                self._say(f"ane: the report {file} cannot be written: {error}")
        if self._graphs is not None:
            for line in write(self._graphs, run, space):
                self._say(line)
        if not _options.on_github():
            return
        for line in commands(run.rows, run.header, places(space.manifest, self._config.rootpath)):
            self._say(line)
        if given := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                append(Path(given), run.rows, run.header)
            except OSError as error:
                self._say(f"ane: the job summary {given} cannot be written: {error}")

    def _unreached(self, stopped: str) -> Iterator[Row]:
        if not stopped or _due.KEY not in self._config.stash:
            return
        known = {(row.gate, row.subject, row.part == "[ane]") for row in self._rows.values()}
        for test, _ in self._config.stash[_due.KEY].gaps():
            if (test.gate, test.subject, test.part == "[ane]") not in known:
                why = f"not reached: {stopped}"
                yield Row(test.gate, test.subject, "not run", why, part=test.part)

    def _remembering(self, run: Run, space: Workspace) -> Run:
        """With the run whose file this one replaces, what the memory has, and write-ups."""
        run = replace(run, writeups=tuple(writeups(space.manifest.path.parent / FOLDER)))
        for line in self._said:
            self._say(line)
        if self._before is not None:
            run = against(run, self._before)
        folder = next((writer.path.parent for writer in self._writers if writer.brief), None)
        if folder is None:
            return run
        models = list(dict.fromkeys(shard.model for shard in space.shards))
        try:
            memory = Memory(folder, models)
        except HistoryError as error:
            self._say(f"ane: the report shows no history: {error}")
            return run
        last = run.earlier or last_before(memory, space.run_id, places_of(run))
        return replace(run, earlier=last, courses=tuple(courses(memory)))

    def _say(self, line: str) -> None:
        if (reporter := self._config.pluginmanager.getplugin("terminalreporter")) is not None:
            reporter.ensure_newline()
            reporter.write_line(line)
        else:
            print(f"\n{line}", file=sys.stdout, flush=True)


def append(file: Path, rows: Sequence[Row], header: str) -> None:
    """Add the summary to a step's file, in the room that what is there already leaves."""
    before = file.stat().st_size if file.exists() else 0
    if not (text := summary(rows, header, ROOM - before - 1)):
        raise OSError(f"it has {before:,} bytes already, and GitHub drops what is over 1 MiB")
    with file.open("ab") as stream:
        stream.write(f"\n{text}".encode() if before else text.encode())


def broken(report: pytest.TestReport | pytest.CollectReport, root: Path) -> Row | None:
    """A test or file of tests that failed without a verdict, by what was raised, and where."""
    if not report.failed:
        return None
    crash = getattr(report.longrepr, "reprcrash", None)
    place = None
    if crash is not None:
        text = crash.message.partition("\n")[0]
        path = Path(root, crash.path)
        if path.is_relative_to(root):
            place = path.relative_to(root).as_posix(), int(crash.lineno)
    else:
        lines = report.longreprtext.strip().splitlines()
        text = lines[-1].removeprefix("E   ") if lines else ""
    subject, summary = printable(report.nodeid), printable(text, LONGEST)
    return Row(gate="", subject=subject, status="error", summary=summary, place=place)


def places(manifest: Manifest, rootdir: Path) -> Callable[[Row], Place | None]:
    """The line of a failed test, else of the shard in the manifest, inside the repository alone."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    path = manifest.path.resolve()
    known = path.is_file() and path.is_relative_to(root)
    file = path.relative_to(root).as_posix() if known else ""
    lines = key_lines(path.read_bytes().decode("utf-8-sig")) if known else {}

    def place(row: Row) -> Place | None:
        if row.place is not None:
            test = (rootdir / row.place[0]).resolve()
            inside = test.is_relative_to(root)
            return (test.relative_to(root).as_posix(), row.place[1]) if inside else None
        if not known:
            return None
        model, _, shard = row.subject.partition(":")
        table = ("models", model, "shard", without_function(shard)[0])
        return (file, line_of(lines, table)) if row.gate else None

    return place


def of_report(report: pytest.TestReport | pytest.CollectReport, row: Row) -> Record:
    """The record of a test's report, with the verdict that its row shows."""
    packed = getattr(report, "ane_record", None) if row.gate else None
    known = packed and Record.from_data(json.loads(zlib.decompress(packed)))
    return replace(known or of_row(row), verdict={**verdict_data(row), "outcome": report.outcome})


def of_row(row: Row) -> Record:
    """The record of a row without a test, or of a test that came to no measurement."""
    now = datetime.now(timezone.utc)
    subject, part = printable(row.subject, LONGEST), printable(row.part, LONGEST)
    return Record(gate=row.gate, subject=subject, time=now, part=part, verdict=verdict_data(row))


def _facts(config: pytest.Config, space: Workspace, header: str) -> Facts:
    root, path = config.rootpath, space.manifest.path.absolute()
    text = path.read_bytes() if path.is_file() else b""
    # A package alone may lie in a cache, which is no checkout of what is tested.
    here = config.invocation_params.dir if _options.packages(config) else path.parent
    commit, clean = checkout(here)
    return Facts(
        id=space.run_id,
        started=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}",
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
