"""Stored runs of pytest-benchmark: where they are, and one read whole and checked before use.

They lie in `.benchmarks/<system and Python>/0001_*.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.gates.throughput.speed import KEY, Speed
from pytest_ane.mlprogram.atomic import read_regular
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.mlprogram.strict_json import first_error

RECORD = "pytest -m bench --ane-shards=all --benchmark-autosave"
"""The command that records a run."""
STORAGE = "file://./.benchmarks"
"""pytest-benchmark's default of `--benchmark-storage`."""
SHORTEST, LONGEST = 1e-9, 1e9
"""Seconds that a round may take; a file that claims others is refused."""
_RUNS = "[0-9][0-9][0-9][0-9]_*"
"""pytest-benchmark's own glob."""
_MOST_BYTES = 256 << 20
"""A run with every timing in it (`--benchmark-save-data`) has some MB."""

_Number = Annotated[float, Field(ge=0)]


class Storage(Protocol):
    """What is used of pytest-benchmark's `FileStorage`; its folders are by system and Python."""

    path: Path
    default_machine_id: str
    logger: Any

    def query(self, *globs_or_files: str) -> list[Path]:
        """Files by number, path or glob, oldest first; `ValueError` for a glob with two slashes."""


def open_storage(uri: str = STORAGE, baselines: Path | None = None) -> Storage:
    """The storage of a `--benchmark-storage`; its folder is made, as pytest-benchmark does.

    `baselines`, the folder that a model of the manifest names, goes in its place. `UnprovenError`
    where the URI is no folder.
    """
    if "://" in uri and not uri.startswith("file://"):
        says = "is no folder, and throughput is compared with files; leave it out"
        raise UnprovenError(f"--benchmark-storage={uri} {says}.")
    logger: Any = import_module("pytest_benchmark.logger").Logger
    utils: Any = import_module("pytest_benchmark.utils")
    storage = utils.load_storage(
        uri if baselines is None else f"file://{baselines}",
        logger=logger(logger.QUIET),
        default_machine_id=utils.get_machine_id(),
        netrc="",
    )
    return cast(Storage, storage)


def files_of(storage: Storage, which: str | None = None) -> list[Path]:
    """Stored runs of this system, oldest first: all, or those named; `UnprovenError` of none."""
    if which is None:
        return storage.query(_RUNS)
    try:
        files = storage.query(which)
    except (OSError, ValueError) as error:
        raise UnprovenError(f"--benchmark-compare={which}: {error}") from None
    if not files:
        fix = "give a number such as 0001, or leave it out for the newest"
        where = f"names no run in {folder_of(storage)}"
        raise UnprovenError(f"--benchmark-compare={which} {where}; {fix}.")
    return files


def folder_of(storage: Storage) -> Path:
    """The folder of this system's and Python's runs."""
    return storage.path / (storage.default_machine_id or "")


@dataclass(frozen=True)
class StoredRun:
    """One run's benchmarks: node ids of all, ours with speeds; the day, if the file has one."""

    file: Path
    when: str
    names: frozenset[str]
    speeds: Mapping[str, Speed]

    @property
    def number(self) -> str:
        """`0003`, as `--benchmark-compare` takes it."""
        return self.file.stem.partition("_")[0]


def read_stored(file: Path) -> StoredRun:
    """Read a stored run; one that did not change is read once per process.

    What pytest-benchmark reads of it is checked too, which would otherwise end in a traceback: a
    run is written in place, so a full disk or a killed process leaves half of one. `UnprovenError`
    where it is damaged, or an impossible speed is in it.
    """
    try:
        status = file.stat()
        return _read(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError) as error:
        raise damaged(file, error) from None


def damaged(file: Path, error: Exception | str, again: str = RECORD) -> UnprovenError:
    """The error for a damaged file of `.benchmarks`: which, why, and how to record it again."""
    why = str(getattr(error, "strerror", None) or error)
    if isinstance(error, ValidationError):
        why = first_error(error)
    says = f"{file} cannot be compared with ({why}); delete it, and record it again with: {again}"
    return UnprovenError(says, "damaged")


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Stats(_Record):
    """What pytest-benchmark's table and its `--benchmark-compare-fail` look up."""

    min: _Number
    max: _Number
    mean: Annotated[float, Field(gt=0)]
    stddev: _Number
    median: _Number
    iqr: _Number
    ops: _Number = 0
    rounds: int
    iterations: int
    outliers: str


class _Benchmark(_Record):
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = {}

    @property
    def speed(self) -> Speed:
        speed = Speed.model_validate(self.extra_info[KEY])
        if wrong := [s for s in speed.seconds if not SHORTEST <= s <= LONGEST]:
            raise ValueError(f"{wrong[0]:g} seconds are no round's")
        if speed.tokens > 1 << 40:
            raise ValueError(f"{speed.tokens:,} tokens are no round's")
        return speed


class _Run(_Record):
    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, Any]
    datetime: str = ""


@lru_cache(maxsize=256)
def _read(file: Path, changed: int, size: int) -> StoredRun:
    """`changed` (time in ns) and `size` are keys of the cache only."""
    run = _Run.model_validate_json(read_regular(file, _MOST_BYTES), strict=True)
    ours = {b.fullname: b.speed for b in run.benchmarks if KEY in b.extra_info}
    return StoredRun(file, run.datetime[:10], frozenset(b.fullname for b in run.benchmarks), ours)
