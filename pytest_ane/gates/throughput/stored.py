"""One stored run of pytest-benchmark, read whole and checked before anybody relies on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.core.errors import UnprovenError
from pytest_ane.gates.throughput.speed import KEY, Speed

RECORD = "pytest -m bench --ane-shards=all --benchmark-autosave"
"""Records a run."""
SHORTEST, LONGEST = 1e-9, 1e9
"""Seconds that a round may take: what a file says beyond is not believed."""

_MOST_BYTES = 256 << 20
"""A run with every timing in it (`--benchmark-save-data`) has some MB."""

_Number = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Stored:
    """A run's benchmarks.

    Attributes:
        file: where it is stored.
        when: day it was recorded, as `2026-11-21`; empty where it is not said.
        speeds: what ours measured; none in a run of somebody else's benchmarks.
    """

    file: Path
    when: str
    speeds: tuple[Speed, ...]

    @property
    def run(self) -> str:
        """`0003`: what `--benchmark-compare` calls it."""
        return self.file.stem.partition("_")[0]


def read_stored(file: Path) -> Stored:
    """Read a stored run; one that did not change is read once per process.

    What pytest-benchmark reads is checked too, for it would end in a traceback: a run is written
    in place, so a full disk or a killed process leaves half of one.

    Raises:
        UnprovenError: damaged, no run of pytest-benchmark, or with a speed that none can have.
    """
    try:
        status = file.stat()
        # A pipe or a device would be read without end.
        if not S_ISREG(status.st_mode):
            raise damaged(file, "it is no regular file")
        if status.st_size > _MOST_BYTES:
            raise damaged(file, f"{status.st_size:,} bytes are more than any run has")
        return _read(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError) as error:
        raise damaged(file, str(getattr(error, "strerror", None) or error)) from None


def damaged(file: Path, why: str, again: str = RECORD) -> UnprovenError:
    """The error that names a file of `.benchmarks` and what to do about it."""
    return UnprovenError(
        f"{file} cannot be compared with ({why}); delete it, and record it anew with: {again}",
        "damaged",
    )


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


class _Run(_Record):
    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, Any]
    datetime: str = ""


@lru_cache(maxsize=256)
def _read(file: Path, changed: int, size: int) -> Stored:
    """Keyed by time of change in ns and size, too."""
    try:
        run = _Run.model_validate_json(file.read_bytes(), strict=True)
        ours = (bench.extra_info[KEY] for bench in run.benchmarks if KEY in bench.extra_info)
        return Stored(file, run.datetime[:10], tuple(_speed(one) for one in ours))
    except ValidationError as error:
        raise damaged(file, said(error)) from None


def said(error: ValidationError) -> str:
    """Where the first thing is that is wrong, and what."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"][:6])
    what = first["msg"][:1].lower() + first["msg"][1:]
    return f"{place}: {what}" if place else what


def _speed(data: object) -> Speed:
    speed = Speed.model_validate(data)
    if (
        wrong := next((s for s in speed.seconds if not SHORTEST <= s <= LONGEST), None)
    ) is not None:
        raise ValueError(f"{wrong:g} seconds are no round's")
    if speed.tokens > 1 << 40:
        raise ValueError(f"{speed.tokens:,} tokens are no round's")
    return speed
