"""Noise: how much the medians of unchanged runs differ, and what that makes of a threshold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_ane.core.digests import key_digest
from pytest_ane.core.errors import UnprovenError
from pytest_ane.core.files import write_atomically
from pytest_ane.gates.throughput.speed import Speed, What
from pytest_ane.gates.throughput.storage import Storage, folder_of
from pytest_ane.gates.throughput.stored import LONGEST, SHORTEST, damaged, said

COMMAND = "pytest-ane calibrate"
LIMIT = 2.8
"""Sigmas by which two runs of the same thing differ at most, in 95 of 100 pairs: the repeatability
limit r = 1.96 sqrt(2) sigma of ISO 5725-6:1994, which rounds it so."""
Benchmark: TypeAlias = tuple[What, str, int, tuple[int, ...]]
_MOST_BYTES = 16 << 20
_Seconds = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]


class Noise(BaseModel):
    """Medians of one benchmark in runs between which nothing changed.

    Attributes:
        what: as in `Speed`, like `subject`, `tokens` and `prompt`.
        medians: seconds of the median round, one for each run.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    what: What
    subject: str
    tokens: Annotated[int, Field(ge=0)]
    prompt: tuple[int, ...] = ()
    medians: Annotated[tuple[_Seconds, ...], Field(min_length=2)]

    @property
    def runs(self) -> int:
        """How many there were."""
        return len(self.medians)

    @property
    def sigma(self) -> float:
        """Standard deviation as a share of the mean: of tok/s, or of the seconds of a load."""
        values = [1 / one if self.tokens else one for one in self.medians]
        return statistics.stdev(values) / statistics.mean(values)

    @property
    def limit(self) -> float:
        """2.8 sigma: the share by which a run may differ from another without a cause."""
        return LIMIT * self.sigma

    @property
    def uncertainty(self) -> float:
        """Relative standard error of sigma itself, 1 / sqrt(2 (n - 1)) for normal noise."""
        return 1 / math.sqrt(2 * (self.runs - 1))


class Calibration(BaseModel):
    """The noise of one machine.

    Attributes:
        identity: as in `Speed`.
        noises: by benchmark.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    identity: dict[str, str]
    noises: tuple[Noise, ...]


def calibrations(runs: Sequence[Sequence[Speed]]) -> list[Calibration]:
    """The noise of every benchmark that at least two runs have, by machine.

    Raises:
        UnprovenError: there is none.
    """
    medians: dict[str, dict[Benchmark, list[float]]] = {}
    identities = {key_digest(one.identity): one.identity for run in runs for one in run}
    for speed in (speed for run in runs for speed in run):
        found = medians.setdefault(key_digest(speed.identity), {})
        found.setdefault(benchmark_of(speed), []).append(speed.median)
    made = [
        Calibration(identity=identities[key], noises=tuple(_noises(found)))
        for key, found in medians.items()
    ]
    if not (kept := [one for one in made if one.noises]):
        raise UnprovenError(
            f"No benchmark was in two runs of the same machine, out of {len(runs)}, so nothing is "
            f"known of noise; give {COMMAND} --runs=5, and shards that are benchmarked."
        )
    return kept


def write(storage: Storage, calibration: Calibration) -> Path:
    """Store it beside the runs, whole or not at all; noise of other benchmarks is kept.

    Raises:
        UnprovenError: the folder cannot be written, or what is there already is damaged.
    """
    file = file_of(storage, calibration.identity)
    noises = {benchmark_of(one): one for one in read(storage, calibration.identity)}
    noises |= {benchmark_of(one): one for one in calibration.noises}
    both = calibration.model_copy(update={"noises": tuple(noises.values())})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, both.model_dump_json(indent=1).encode())
    except OSError as error:
        raise UnprovenError(f"{file} cannot be written ({error.strerror}).") from None
    return file


def read(storage: Storage, identity: Mapping[str, str]) -> tuple[Noise, ...]:
    """What is stored of a machine; empty where nothing is.

    Raises:
        UnprovenError: the file is damaged, or another machine's.
    """
    file = file_of(storage, identity)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise damaged(file, "it is too large", COMMAND)
        found = Calibration.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return ()
    except ValidationError as error:
        raise damaged(file, said(error), COMMAND) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise damaged(file, str(why), COMMAND) from None
    if found.identity != identity:
        raise damaged(file, "it is another machine's", COMMAND)
    return found.noises


def noise_of(storage: Storage, speed: Speed) -> Noise | None:
    """The noise of a benchmark, if it was measured on this machine.

    Raises:
        UnprovenError: what is stored is damaged.
    """
    noises = read(storage, speed.identity)
    return next((one for one in noises if benchmark_of(one) == benchmark_of(speed)), None)


def file_of(storage: Storage, identity: Mapping[str, str]) -> Path:
    """Where a machine's noise is kept: no `.json`, which `--benchmark-compare='*'` would read."""
    return folder_of(storage) / f"{key_digest(dict(identity))[:16]}.calibration"


def benchmark_of(one: Noise | Speed) -> Benchmark:
    """What tells benchmarks of one machine apart."""
    return one.what, one.subject, one.tokens, one.prompt


def _noises(found: Mapping[Benchmark, Sequence[float]]) -> Iterator[Noise]:
    for (what, subject, tokens, prompt), medians in found.items():
        if len(medians) > 1:
            yield Noise(
                what=what, subject=subject, tokens=tokens, prompt=prompt, medians=tuple(medians)
            )
