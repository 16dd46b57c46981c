"""Lines of the memory, and how runs append them: `DIR/<model>.jsonl`, one JSON object a line.

Lines are only ever appended, in one write, so that runs at once lose nothing and git can merge
files by union. A half line of a killed run is closed by a line break; readers skip it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from filelock import FileLock

from pytest_ane.mlprogram.errors import HistoryError
from pytest_ane.mlprogram.strict_json import strict
from pytest_ane.records.git import git

FOLDER = "history"
"""The folder's name beside the manifest."""
FORMAT = 1
"""Of lines; a reader skips those of a newer one."""
_LOCK = ".lock"
_FOR_GIT = {".gitattributes": "*.jsonl merge=union\n", ".gitignore": f"{_LOCK}\n"}


@dataclass(frozen=True)
class Line:
    """What one gate measured of one subject in one run.

    Attributes:
        run: id of the run, in hexadecimal digits.
        time: when it was measured or judged, in UTC: `2026-11-21T10:00:00Z`.
        commit: of the manifest's checkout; empty outside of git.
        clean: whether the checkout was that commit, the memory's own folder left out.
        gate: its name.
        subject: qualified shard (`smollm2:L01`) or model (`smollm2`).
        test: which test, where a gate has several of one subject: `load`, `call[T1]`, `[ane]`.
        artifact: SHA-256 of the package; of a model, of all its packages' digests.
        question: SHA-256 of what decides the measurement besides artifact and machine.
        backend: `cpu` or `coreml`; empty where nothing was run.
        arithmetic: of the executor, where it is not `typed`.
        machine: model of the Mac, or cores and threads.
        chip: processor.
        os: system, with its build where that is known.
        compute_units: as Core ML was told.
        recorded: when evidence was recorded that was judged in place of a new measurement.
        versions: of packages and Python.
        figures: values by name, without limits.
        format: of the line.
    """

    run: str
    time: str
    commit: str
    clean: bool
    gate: str
    subject: str
    test: str = ""
    artifact: str = ""
    question: str = ""
    backend: str = ""
    arithmetic: str = ""
    machine: str = ""
    chip: str = ""
    os: str = ""
    compute_units: str = ""
    recorded: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def model(self) -> str:
        """The subject's model."""
        return self.subject.partition(":")[0]

    def to_json(self) -> bytes:
        """The line with its line break; NaN and infinities are texts."""
        data = {"format": self.format, **asdict(self)}
        return json.dumps(strict(data), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def machine_of(facts: Mapping[str, Any]) -> str:
    """A line's `machine` by provenance: the model of a Mac, else cores and threads."""
    cores = ", ".join(str(facts[key]) for key in ("cores", "threads") if key in facts)
    return str(facts.get("mac") or facts.get("model") or cores)


class History:
    """The folder of a memory, for writing.

    Raises:
        HistoryError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=folder, prefix="."):
                pass
            if git(folder, "rev-parse", "--is-inside-work-tree").strip() == "true":
                for name, text in _FOR_GIT.items():
                    if not (folder / name).exists():
                        (folder / name).write_text(text)
        except OSError as error:
            raise HistoryError(
                f"--ane-history: {folder} cannot be written ({error.strerror or error}); name "
                "another folder."
            ) from None

    def append(self, line: Line) -> None:
        """Append a line to the file of its model.

        Raises:
            HistoryError: it cannot be written, or is no regular file.
        """
        path = self.folder / f"{line.model}.jsonl"
        try:
            with FileLock(self.folder / _LOCK):
                _append(path, line.to_json())
        except OSError as error:
            why = error.strerror or error
            raise HistoryError(f"{path} cannot be written ({why}); its lines are lost.") from None


def _append(path: Path, data: bytes) -> None:
    # Not blocking: a pipe of this name would wait for its reader.
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if status.st_size and os.pread(file, 1, status.st_size - 1) != b"\n":
            data = b"\n" + data
        if os.write(file, data) != len(data):
            raise OSError("the disk is full")
    finally:
        os.close(file)
