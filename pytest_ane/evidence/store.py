"""The folder of evidence, in git beside the manifest: one file per shard and gate."""

from __future__ import annotations

import re
from glob import escape
from pathlib import Path
from stat import S_ISREG
from tempfile import NamedTemporaryFile

from pytest_ane.evidence.statement import TYPE, Statement
from pytest_ane.evidence.strict_json import MOST_BYTES, parse
from pytest_ane.manifest.ids import MODEL, is_subject
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import EvidenceError

FOLDER = "evidence"
"""The folder's name, beside the manifest, unless another is given."""
_AT = "@"
SIGNATURES = (".dsse.json", ".sigstore.json")
"""What is appended to a file's name for the signature beside it."""


class Store:
    """Evidence files below a folder: `smollm2/L01.placement.json`, `smollm2/behaviour.json`.

    Where a policy names `systems`, each has a file: `smollm2/L01.placement@macos-27.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, gate: str, subject: str, system: str = "") -> Path:
        """Where evidence of a shard, or of a model, is kept; `system` as the policy names it.

        Raises:
            EvidenceError: the subject is none, so that it could lead out of the folder.
        """
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
        """A file's bytes; None where there is none.

        Raises:
            EvidenceError: it cannot be read, or is larger than any evidence.
        """
        return read_file(self.path(gate, subject, system))

    def write(self, statement: Statement, system: str = "") -> Path:
        """Store a statement in place of an older one; its signature, which no longer fits, goes.

        Raises:
            EvidenceError: the folder cannot be written, or another file lies in the place.
        """
        path = self.path(statement.gate, statement.subject, system)
        if (there := read_file(path)) is not None and _is_foreign(there):
            raise EvidenceError(f"{path} is no evidence and is not replaced; move it away.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, statement.to_json().encode())
            for suffix in SIGNATURES:
                signature(path, suffix).unlink(missing_ok=True)
        except OSError as error:
            raise EvidenceError(f"{path} cannot be written ({error.strerror}).") from None
        return path

    def require_writable(self) -> None:
        """Make the folder, and a file in it for a moment.

        Raises:
            EvidenceError: it cannot be made or written.
        """
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


def _is_foreign(data: bytes) -> bool:
    """Whether a file is whole JSON of somebody else; a damaged one may have been a statement."""
    try:
        top = parse(data)
    except EvidenceError:
        return False
    return not (isinstance(top, dict) and top.get("_type") == TYPE)


def without_system(path: Path) -> Path:
    """Where evidence lies that no system is named for: `L01.placement.json`."""
    return path.with_name(f"{path.stem.partition(_AT)[0]}.json")


def signature(path: Path, suffix: str) -> Path:
    """Where an evidence file's signature lies: `L01.placement.json.dsse.json`."""
    return path.with_name(path.name + suffix)


def read_file(path: Path) -> bytes | None:
    """A file's bytes, at most as many as evidence may have; None where there is none.

    Raises:
        EvidenceError: it cannot be read, or is larger than any evidence.
    """
    try:
        status = path.stat()
        # A link may lead to a device or a pipe, which has no end.
        if not S_ISREG(status.st_mode):
            raise EvidenceError(f"{path} is no regular file.")
        if status.st_size > MOST_BYTES:
            raise EvidenceError(f"{path} has more bytes than any evidence should.")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror}).") from None
