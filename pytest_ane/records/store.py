"""Evidence: records that were committed beside the manifest, a file for each gate and subject.

    evidence/smollm2/L01.placement.json            of any system
    evidence/smollm2/L01.placement@macos-27.json   where the policy names `systems`
    evidence/smollm2/behaviour.json                of a whole model

So git merges and signs it well. A store that machines share has evidence by what was measured and
asked: what is recorded is pushed, and what a folder lacks is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeAlias

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES, recordable
from pytest_ane.make.shared_store import SharedStore
from pytest_ane.manifest import Manifest, Shard
from pytest_ane.manifest.ids import MODEL, is_subject
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import EvidenceError, UnprovenError
from pytest_ane.records._signatures import SIGNATURES, read_envelope, record_of, signature
from pytest_ane.records.record import MOST_BYTES, Record, parse, plain, read_file

FOLDER = "evidence"
"""The folder's name, beside the manifest, unless another is given."""
_AT = "@"
Place: TypeAlias = tuple[str, Subject, str]
"""What a file is evidence of: gate, subject, and system where the policy names several."""


class Store:
    """Evidence files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, gate: str, subject: str, system: str = "") -> Path:
        """Where evidence is kept; `EvidenceError` of a subject that could lead out of it."""
        model, colon, shard = subject.partition(":")
        if not re.fullmatch(MODEL, model) or (colon and not is_subject(shard)):
            raise EvidenceError(f"{subject!r} is neither a model nor a shard.")
        at = f"{_AT}{system.lower().replace(' ', '-')}" if system else ""
        return self.folder / model / f"{shard}{'.' if shard else ''}{gate}{at}.json"

    def all(self, gate: str, subject: str) -> list[Path]:
        """Every file of a gate and subject that is there; `EvidenceError` as of `path`."""
        plain = self.path(gate, subject)
        of_systems = plain.parent.glob(f"{escape(plain.stem)}{_AT}*.json")
        named = sorted(path for path in of_systems if not path.name.endswith(SIGNATURES))
        return [path for path in (plain, *named) if path.exists()]

    def read(self, gate: str, subject: str, system: str = "") -> bytes | None:
        """A file's bytes; None where there is none, `EvidenceError` where it cannot be read."""
        return read_file(self.path(gate, subject, system))

    def write(self, record: Record, system: str = "") -> Path:
        """Store a record, without the old signature; `EvidenceError` of a foreign file."""
        path = self.path(record.gate, record.subject, system)
        if (there := read_file(path)) is not None and _is_foreign(there):
            raise EvidenceError(f"{path} is no evidence and is not replaced; move it away.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, record.to_json().encode())
            for suffix in SIGNATURES:
                signature(path, suffix).unlink(missing_ok=True)
        except OSError as error:
            raise EvidenceError(f"{path} cannot be written ({error.strerror}).") from None
        return path

    def require_writable(self) -> None:
        """Make the folder, and a file in it for a moment; `EvidenceError` where it fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise EvidenceError(
                f"The folder {self.folder} cannot be written ({error.strerror}); name another with "
                "--ane-evidence."
            ) from None

    def files(self) -> list[Path]:
        """All evidence files, sorted; signatures are not among them."""
        files = self.folder.glob("*/*.json")
        return sorted(path for path in files if not path.name.endswith(SIGNATURES))

    def used(self, manifest: Manifest) -> Mapping[Path, Place]:
        """Where evidence of the manifest's shards and models is or would be."""
        scopes: dict[str, tuple[Subject, ...]]
        scopes = {"shard": manifest.shards, "model": manifest.models}
        return {
            self.path(gate.name, subject.qualified, system): (gate.name, subject, system)
            for scope, subjects in scopes.items()
            for subject in subjects
            for gate in recordable(scope)
            if not isinstance(subject, Shard) or gate.asks(subject)
            for system in systems_of(gate.name, subject)
        }

    def unused(self, manifest: Manifest) -> list[Path]:
        """Evidence and signatures that no shard uses; other files in the folder are neither."""
        known, files = self.used(manifest), self.files()
        kept = {signature(path, end) for path in files if path in known for end in SIGNATURES}
        every = sorted(self.folder.glob("*/*.json"))
        signatures = [p for p in every if p.name.endswith(SIGNATURES) and p not in kept]
        others = [path for path in files if path not in known] + signatures
        return [path for path in others if is_evidence(path)]


def systems_of(gate: str, subject: Subject) -> tuple[str, ...]:
    """The systems that each need evidence; the empty one where any will do."""
    systems = subject.policy.evidence.systems if GATES[gate].by_device else None
    return systems or ("",)


def _is_foreign(data: bytes) -> bool:
    try:
        top = parse(data)
    except EvidenceError:
        return False
    return not (isinstance(top, dict) and {"format", "gate", "sha256"} <= top.keys())


def is_evidence(path: Path) -> bool:
    """Whether a file, but no link, holds a record of ours, or a signature of one."""
    if path.is_symlink() or path.parent.is_symlink():
        return False
    try:
        signed = path.name.endswith(SIGNATURES)
        data = record_of(read_envelope(path).payload) if signed else read_file(path)
        Record.from_json(data or b"")
    except (EvidenceError, UnprovenError):
        return False
    return True


def without_system(path: Path) -> Path:
    """Where evidence lies that no system is named for: `L01.placement.json`."""
    return path.with_name(f"{path.stem.partition(_AT)[0]}.json")


def push(shared: SharedStore, folder: Store, record: Record, system: str = "") -> None:
    """Share evidence in place of an older answer; a later one stays, which is said."""
    name = _name(record.gate, record.subject, record.files, record.asked, system)
    with suppress(EvidenceError):
        there = Record.from_json(shared.read(name, MOST_BYTES) or b"")
        if there.time > record.time:
            shared.notify(
                f"{record.subject}: the store {shared.name} has evidence of {record.gate} "
                "that was recorded later; it stays there."
            )
            return
    shared.write(name, folder.path(record.gate, record.subject, system))


def fetch(
    shared: SharedStore, folder: Store, gate: str, subject: str, files: Mapping[str, str],
    asked: Mapping[str, Any], system: str = "",
) -> bool:  # fmt: skip
    """Write a store's evidence of today's files and question to a folder, if it is whole."""
    if (data := shared.read(_name(gate, subject, files, asked, system), MOST_BYTES)) is None:
        return False
    try:
        record = Record.from_json(data)
        found = record.gate, record.subject, {**record.files}, plain(record.asked)
        if found != (gate, subject, {**files}, plain(asked)):
            raise EvidenceError("answers another question; it is not used")
    except EvidenceError as error:
        shared.notify(f"{subject}: its evidence of {gate} in the store {shared.name} {error}.")
        return False
    folder.write(record, system)
    return True


def _name(
    gate: str, subject: str, files: Mapping[str, str], asked: Mapping[str, Any], system: str
) -> str:
    return f"evidence/{key_digest([gate, subject, {**files}, plain(asked), system])}.json"
