"""Where runs are stored: pytest-benchmark's `.benchmarks/<system and Python>/0001_*.json`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from pytest_ane.core.errors import UnprovenError
from pytest_ane.gates.throughput.stored import read_stored

_RUNS = "[0-9][0-9][0-9][0-9]_*"
"""pytest-benchmark's own glob."""
STORAGE = "file://./.benchmarks"
"""pytest-benchmark's own default."""
_NO_FOLDER = (
    "--benchmark-storage={} is no folder, and throughput is compared with files; leave it out."
)
_ELSEWHERE = 20
"""Runs of other machines that are looked at to say what they are."""


class Storage(Protocol):
    """What is used of pytest-benchmark's `FileStorage`.

    Attributes:
        path: the folder.
        default_machine_id: the folder in it for this system and Python.
        logger: where it says what it saved.
    """

    path: Path
    default_machine_id: str
    logger: Any

    def query(self, *globs_or_files: str) -> list[Path]:
        """Files by number, path or glob, oldest first; `ValueError` for a glob with two slashes."""


def open_storage(uri: str = STORAGE) -> Storage:
    """The storage that `--benchmark-storage` means; its folder is made, as pytest-benchmark does.

    Raises:
        UnprovenError: it is no folder.
    """
    if "://" in uri and not uri.startswith("file://"):
        raise UnprovenError(_NO_FOLDER.format(uri))
    logger: Any = import_module("pytest_benchmark.logger").Logger
    utils: Any = import_module("pytest_benchmark.utils")
    machine = utils.get_machine_id()
    found = utils.load_storage(
        uri, logger=logger(logger.QUIET), default_machine_id=machine, netrc=""
    )
    return cast(Storage, found)


def storage_of(session: Any, baselines: Path | None = None) -> Storage:
    """The storage of a session of pytest-benchmark, or of the folder that a model names.

    Raises:
        UnprovenError: it stores runs in a database.
    """
    if not hasattr(session.storage, "query"):
        raise UnprovenError(_NO_FOLDER.format(session.storage))
    return beside(session.storage, baselines)


def beside(storage: Storage, baselines: Path | None) -> Storage:
    """The same in the folder that a model names, where it does."""
    if baselines is None:
        return storage
    kind: Any = type(storage)
    return cast(Storage, kind(baselines, storage.logger, storage.default_machine_id))


def check(storage: Storage, which: str | None) -> None:
    """Look at the runs that `--benchmark-compare` will load, before anything is measured.

    pytest-benchmark skips a run that is no JSON for an older one, and ends in a traceback where
    the JSON is not its own.

    Args:
        storage: pytest-benchmark's.
        which: the runs that are named; None for the newest.

    Raises:
        UnprovenError: one is damaged, or none has the name.
    """
    files = files_of(storage, which)
    for file in files if which else files[-1:]:
        read_stored(file)


def files_of(storage: Storage, which: str | None) -> list[Path]:
    """Stored runs of this system, oldest first: all, or those named.

    Raises:
        UnprovenError: none has the name.
    """
    if which is None:
        return storage.query(_RUNS)
    try:
        files = storage.query(which)
    except (OSError, ValueError) as error:
        raise UnprovenError(f"--benchmark-compare={which}: {error}") from None
    if not files:
        raise UnprovenError(
            f"--benchmark-compare={which} names no run in {folder_of(storage)}; give a number such "
            "as 0001, or leave it out for the newest."
        )
    return files


def runs_elsewhere(storage: Storage) -> list[Path]:
    """The latest runs of other systems and Pythons."""
    return storage.query(f"*/{_RUNS}")[-_ELSEWHERE:]


def folder_of(storage: Storage) -> Path:
    """Where runs of this system and Python are."""
    return storage.path / (storage.default_machine_id or "")
