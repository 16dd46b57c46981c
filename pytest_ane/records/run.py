"""A run as a file: what was asked of what, then every record, then how it ended.

    {"format": 1, "run": {"id": "77aa...", "started": "2026-11-24T16:00:00.123456Z", ...}}
    {"format": 1, "gate": "placement", "subject": "smollm2:L01", ..., "verdict": {...}}
    {"end": {"seconds": 76.5, "exit_code": 0, "records": 1, ...}, "sha256": "1f0c..."}

Every line is on disk before the next test; a killed run is known by its missing end, a line that
was changed, taken out or put in by the digest. Who writes the whole anew is caught by `audit`.
In a folder each run has a file of brief records: the history, which `memory` reads.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

import pytest_ane
from pytest_ane.gates.base import GateTest
from pytest_ane.mlprogram.digests import file_digest, key_digest
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.mlprogram.strict_json import strict
from pytest_ane.mlprogram.text import shown
from pytest_ane.project import suite
from pytest_ane.records.record import FORMAT, Record, parse, read_file

SUFFIX = ".jsonl"
MOST_BYTES = 1 << 30
"""Of the file of a run."""
_PACKAGES = ("coremltools", "numpy", "torch", "pytest")


@dataclass(frozen=True)
class Facts:
    """What was run, on what, and how it ended.

    Attributes:
        id: of the run, in hexadecimal digits.
        started: UTC, `2026-11-24T16:00:00.123456Z`.
        header: what decides the verdicts, in one line.
        manifest: the file's path from pytest's root directory, `digest` its SHA-256, and
            `manifest_text` its lines when the run began, tabs as spaces.
        gates: SHA-256 of the files of gates in use by name; `plugin` of pytest-ane's own modules.
        commit: of the checkout; empty outside of git. It is `clean` where nothing was changed.
        machine: backend, machine and versions, as the backend tells them at the end.
        stopped: why it ended before all was asked, such as `interrupted`; empty where it did not.
        exit_code: pytest's; None where the run was cut off.
    """

    id: str = ""
    started: str = ""
    header: str = ""
    arguments: tuple[str, ...] = ()
    selection: str = ""
    manifest: str = ""
    digest: str = ""
    manifest_text: tuple[str, ...] = ()
    gates: Mapping[str, str] = field(default_factory=dict)
    plugin: str = ""
    commit: str = ""
    clean: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str = ""
    exit_code: int | None = None

    @property
    def begun(self) -> str:
        """`started` in whole seconds, for people: `2026-11-24T16:00:00Z`."""
        return f"{self.started[:19]}Z" if self.started else ""


_ENDS = ("machine", "seconds", "stopped", "exit_code")
_FACTS = TypeAdapter(Facts)


@dataclass(frozen=True)
class RunFile:
    """What the file of a run says, from the first line to the last."""

    facts: Facts
    records: tuple[Record, ...]

    def record(self, test: GateTest) -> Record | None:
        """The last record of a test."""
        return next((record for record in reversed(self.records) if record.test == test), None)


class Writer:
    """Writes a run's file as it goes on, or into a history; `EvidenceError` where it cannot."""

    def __init__(self, path: Path, facts: Facts) -> None:
        self.brief = path.suffix.lower() != SUFFIX
        day = facts.begun.replace(":", "-")
        self.path = path / f"{day}-{facts.id[:12]}{SUFFIX}" if self.brief else path
        self.count = 0
        self._digest = hashlib.sha256()
        data = asdict(facts)
        with self._explained():
            if self.path.exists() and self.path.stat().st_size and not is_run(self.path):
                raise EvidenceError(
                    f"{self.path} is no file of a run and is not replaced; name another file."
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
        self._append({"format": FORMAT, "run": {k: data[k] for k in data if k not in _ENDS}})

    def add(self, record: Record) -> None:
        """Append a record without what no reader would take, such as what a terminal would obey."""
        line = (record.brief() if self.brief else record).to_line()
        try:
            parse(line)
        except EvidenceError:
            line = replace(record, files={}, asked={}, figures={}, measurement=None).to_line()
        self._write(line)
        self.count += 1

    def close(self, facts: Facts) -> None:
        """Append how the run ended; a file without that is of a run that was cut off."""
        end = {name: getattr(facts, name) for name in _ENDS}
        self._append({"end": {**end, "records": self.count}, "sha256": self._digest.hexdigest()})

    def _append(self, data: Mapping[str, Any]) -> None:
        self._write(json.dumps(shown(strict(data)), separators=(",", ":")).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        with self._explained(), self.path.open("ab") as file:
            file.write(line)
        self._digest.update(line)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise EvidenceError(f"{self.path} cannot be written ({why}).") from None


def is_run(path: Path) -> bool:
    """Whether a file begins as the file of a run."""
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(b'{"format":') and b'"run":' in head


def read_run(path: Path) -> RunFile:
    """Read the file of a run, or of one that was cut off; `EvidenceError` of a damaged one."""
    written = path if path.suffix == SUFFIX else f"run{SUFFIX}"
    how = f"a run writes one with --ane-report={written}"
    if (data := read_file(path, MOST_BYTES)) is None:
        raise EvidenceError(f"{path} cannot be read (No such file or directory); {how}.")
    lines = data.splitlines(keepends=True)
    try:
        facts = facts_of(lines[0] if lines else b"")
    except EvidenceError as error:
        raise EvidenceError(f"{path} is no file of a run: {error}; {how}.") from None
    records, ended = list[Record](), False
    before = hashlib.sha256(b"".join(lines[:1]))
    for number, line in enumerate(lines[1:], 2):
        try:
            if ended:
                raise EvidenceError("follows the end")
            if isinstance(data := parse(line), dict) and "end" in data:
                facts, ended = _ended(facts, data, len(records), before.hexdigest()), True
            else:
                records.append(Record.from_data(data))
        except EvidenceError as error:
            raise EvidenceError(f"{path}:{number} {error}.") from None
        before.update(line)
    return RunFile(facts if ended else replace(facts, stopped=CUT_OFF), tuple(records))


CUT_OFF = "the run was cut off"


def facts_of(line: bytes) -> Facts:
    """The facts in the first line of a run; `EvidenceError` of another line."""
    if not isinstance(data := parse(line), dict) or "run" not in data:
        raise EvidenceError("it has no first line of a run")
    if type(data.get("format")) is not int or data["format"] != FORMAT:
        raise EvidenceError(f"it has not format {FORMAT}")
    return _facts(data["run"], "run")


def _ended(facts: Facts, data: Mapping[str, Any], count: int, digest: str) -> Facts:
    end = data["end"]
    if not isinstance(end, dict) or data.get("sha256") != digest or end.get("records") != count:
        raise EvidenceError("does not fit the lines before: one was edited, added or taken out")
    return _facts({**asdict(facts), **{name: end.get(name) for name in _ENDS}}, "end")


def _facts(data: Any, where: str) -> Facts:
    try:
        return _FACTS.validate_python(data)
    except ValidationError as error:
        place = error.errors(include_url=False, include_input=False)[0]["loc"]
        raise EvidenceError(f"{'.'.join(map(str, (where, *place)))} is damaged") from None


def versions() -> dict[str, str]:
    """Versions of pytest-ane and of what it measures with."""
    return {"pytest-ane": pytest_ane.__version__} | {p: version(p) for p in _PACKAGES}


def gate_files(root: Path) -> dict[str, str]:
    """SHA-256 of the files of gates in use, by name: the shipped ones, and all of `gates/`."""
    folder = root / suite.FOLDER
    files = (f for f in sorted(folder.rglob("*")) if f.is_file() and "__pycache__" not in f.parts)
    own = {file.relative_to(folder).as_posix(): file for file in files}
    shipped = {file.name: suite.in_use(root, file.name) for file in suite.files()}
    return {name: file_digest(file) for name, file in (shipped | own).items()}


def plugin_digest() -> str:
    """SHA-256 over all modules of the installed pytest-ane."""
    folder = Path(pytest_ane.__file__).parent
    modules = {p.relative_to(folder).as_posix(): file_digest(p) for p in folder.rglob("*.py")
               if "suite" not in p.relative_to(folder).parts[:1]}  # fmt: skip
    return key_digest(modules)


def checkout(folder: Path) -> tuple[str, bool]:
    """The commit of a checkout, and whether nothing tracked was changed."""
    commit = git(folder, "rev-parse", "HEAD").strip()
    # One line says the branch; none at all, that git failed.
    status = git(folder, "status", "--porcelain", "--branch", "-uno")
    return commit, bool(commit) and len(status.splitlines()) == 1


def git(folder: Path, *arguments: str, given: str | None = None) -> str:
    """What git prints, `given` its standard input; empty where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, errors="replace",
            input=given, check=False,
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
