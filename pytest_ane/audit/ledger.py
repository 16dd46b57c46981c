"""The ledger of a run: what was due, and what was measured of which bytes; a line for each.

Every line holds the SHA-256 of the one before, so that a line that was changed, taken out or put
in between is noticed. Whoever writes the whole file anew is not: see `audit.verify`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

import pytest_ane
from pytest_ane.gates.base import GateTest
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.digests import file_digest, key_digest
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.mlprogram.strict_json import parse_json, strict
from pytest_ane.project.suite import FOLDER, files, in_use
from pytest_ane.records.git import checkout

_FORMAT = 1
_MOST_BYTES = 1 << 30
_PACKAGES = ("coremltools", "numpy", "torch", "pytest")


@dataclass(frozen=True)
class Opening:
    """The first line.

    Attributes:
        due: every test of every selected shard and model.
        selection: as `--ane-shards` has it.
        manifest: SHA-256 of the manifest.
        gates: SHA-256 of the files of gates in use by name.
        plugin: SHA-256 of pytest-ane's own modules, `plugin_digest`.
        versions: of pytest-ane and of what it measures with.
        commit: of the checkout; empty outside of git.
        clean: whether the checkout is that commit.
        format: of the ledger.
    """

    due: tuple[GateTest, ...]
    selection: str
    manifest: str
    gates: Mapping[str, str]
    plugin: str
    versions: Mapping[str, str]
    commit: str
    clean: bool
    format: int = _FORMAT


@dataclass(frozen=True)
class Entry:
    """A gate that came to a verdict, or broke down before it.

    Attributes:
        gate, subject, arithmetic: as of `GateTest`.
        status: the verdict's; `error` where there is none.
        outcome: of the test.
        statement: what was measured, as an evidence file holds it; None for forecasts.
    """

    gate: str
    subject: str
    arithmetic: Arithmetic
    status: str
    outcome: str
    statement: str | None = None


@dataclass(frozen=True)
class Closing:
    """The last line.

    Attributes:
        exit_code: pytest's.
        entries: how many there are.
    """

    exit_code: int
    entries: int


@dataclass(frozen=True)
class Ledger:
    """What a ledger's lines say, from the first to the last."""

    opening: Opening
    entries: tuple[Entry, ...]
    closing: Closing

    def entry(self, test: GateTest) -> Entry | None:
        """The last entry of a test."""
        entries = (e for e in reversed(self.entries) if (e.gate, e.subject, e.arithmetic) == test)
        return next(entries, None)


Line: TypeAlias = Opening | Entry | Closing
_LINES: dict[str, type[Line]] = {"run": Opening, "gate": Entry, "end": Closing}


class LedgerWriter:
    """Writes a ledger while a run goes on; every line is on disk before the next test.

    Args:
        path: made, or another ledger in its place.

    Raises:
        EvidenceError: a file that is no ledger lies there, or it cannot be written.
    """

    def __init__(self, path: Path, opening: Opening) -> None:
        self._path = path
        self._previous = ""
        self._entries = 0
        try:
            if path.exists() and b'"kind": "run"' not in path.read_bytes()[:100]:
                raise EvidenceError(f"{path} is no ledger and is not replaced; name another file.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        except OSError as error:
            raise EvidenceError(f"{path} cannot be written ({error.strerror}).") from None
        self._append("run", opening)

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self._entries += 1
        self._append("gate", entry)

    def close(self, exit_code: int) -> None:
        """Append the last line."""
        self._append("end", Closing(exit_code, self._entries))

    def _append(self, kind: str, line: Line) -> None:
        data = {"kind": kind, **strict(line), "previous": self._previous}
        text = json.dumps(data).encode() + b"\n"
        try:
            with self._path.open("ab") as file:
                file.write(text)
        except OSError as error:
            raise EvidenceError(f"{self._path} cannot be written ({error.strerror}).") from None
        self._previous = hashlib.sha256(text).hexdigest()


def read_ledger(path: Path) -> Ledger:
    """Read a whole ledger.

    Raises:
        EvidenceError: it is missing, damaged, was edited, or its run was cut off.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise EvidenceError(f"{path} has more bytes than any ledger should.")
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise EvidenceError(
            f"{path} cannot be read ({error.strerror}); the run writes it with --ane-ledger."
        ) from None
    parsed, previous = list[Line](), ""
    for number, line in enumerate(lines, 1):
        parsed.append(_line(path, number, line, previous))
        previous = hashlib.sha256(line).hexdigest()
    match parsed:
        case [Opening() as opening, *entries, Closing() as closing]:
            kept = tuple(entry for entry in entries if isinstance(entry, Entry))
            if len(kept) == len(entries) == closing.entries:
                return Ledger(opening, kept, closing)
    raise EvidenceError(f"{path} has no end, or entries are missing: the run was cut off.")


def _line(path: Path, number: int, line: bytes, previous: str) -> Line:
    try:
        data = parse_json(line.decode())
        kind, before = data.pop("kind"), data.pop("previous")
        parsed: Line = TypeAdapter(_LINES[kind]).validate_python(data)
    except (ValueError, KeyError, AttributeError, TypeError, ValidationError):
        raise EvidenceError(f"{path}:{number} is no line of a ledger.") from None
    if before != previous:
        raise EvidenceError(f"{path}:{number} does not follow the line before: it was edited.")
    if isinstance(parsed, Opening) and parsed.format != _FORMAT:
        raise EvidenceError(f"{path} has format {parsed.format}; this release reads {_FORMAT}.")
    return parsed


def opening_of(manifest: Path, root: Path, selection: str, due: list[GateTest]) -> Opening:
    """The first line of a run that starts now.

    Args:
        manifest: the manifest's file, or a package where there is none.
        root: pytest's root directory.
        selection: as the option has it.
        due: tests.
    """
    commit, clean = checkout(root)
    return Opening(
        due=tuple(due),
        selection=selection,
        manifest=file_digest(manifest) if manifest.is_file() else "",
        gates=gate_files(root),
        plugin=plugin_digest(),
        versions=versions(),
        commit=commit,
        clean=clean,
    )


def versions() -> dict[str, str]:
    """Versions of pytest-ane and of what it measures with."""
    return {"pytest-ane": pytest_ane.__version__} | {p: version(p) for p in _PACKAGES}


def gate_files(root: Path) -> dict[str, str]:
    """SHA-256 of the files of gates in use, by name: the shipped ones, and all of `gates/`."""
    folder = root / FOLDER
    own = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*.py"))}
    shipped = {file.name: in_use(root, file.name) for file in files()}
    return {name: file_digest(file) for name, file in (shipped | own).items()}


def plugin_digest() -> str:
    """SHA-256 over all modules of the installed pytest-ane."""
    folder = Path(pytest_ane.__file__).parent
    modules = {p.relative_to(folder).as_posix(): file_digest(p) for p in folder.rglob("*.py")
               if "suite" not in p.relative_to(folder).parts[:1]}  # fmt: skip
    return key_digest(modules)
