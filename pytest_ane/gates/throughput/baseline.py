"""What a benchmark is compared with: the newest stored run of the same machine that has it.

How much unchanged runs differ there, the noise, sets the limit of a change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from pytest_ane.gates.throughput.speed import Speed, What, percent
from pytest_ane.gates.throughput.stored import (
    LONGEST,
    SHORTEST,
    Storage,
    StoredRun,
    damaged,
    files_of,
    folder_of,
    read_stored,
)
from pytest_ane.manifest.policy import CALIBRATED, ThroughputPolicy
from pytest_ane.mlprogram.atomic import read_regular, write_atomically
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.mlprogram.groups import grouped

COMMAND = "pytest-ane calibrate"
SIGMAS = 2.8
"""Sigmas by which two runs of the same thing differ at most, in 95 of 100 pairs: the repeatability
limit r = 1.96 sqrt(2) sigma of ISO 5725-6:1994, which rounds it so."""
DEFAULT, DEFAULT_LOAD = 0.25, 1.0
"""Limits where neither policy nor calibration gives one: load times vary by half between runs."""
BLIND = 0.5
"""Noise limit from which on a run of half the speed could pass."""
Benchmark: TypeAlias = tuple[What, str, int, tuple[int, ...]]
_MOST_BYTES = 16 << 20
_Seconds = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]


class Noise(BaseModel):
    """Seconds of the median round of runs between which nothing changed; else as `Speed`."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    what: What
    subject: str
    tokens: Annotated[int, Field(ge=0)]
    prompt: tuple[int, ...] = ()
    medians: Annotated[tuple[_Seconds, ...], Field(min_length=2)]

    @property
    def runs(self) -> int:
        """Number of runs, 2 or more."""
        return len(self.medians)

    @property
    def sigma(self) -> float:
        """Standard deviation as a share of the mean: of tok/s, or of the seconds of a load."""
        values = [1 / median if self.tokens else median for median in self.medians]
        return statistics.stdev(values) / statistics.mean(values)

    @property
    def limit(self) -> float:
        """2.8 sigma: the share by which a run may differ from another without a cause."""
        return SIGMAS * self.sigma

    @property
    def uncertainty(self) -> float:
        """Relative standard error of sigma itself, 1 / sqrt(2 (n - 1)) for normal noise."""
        return 1 / math.sqrt(2 * (self.runs - 1))


class Calibration(BaseModel):
    """The noise of one machine, by benchmark; the identity is as in `Speed`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    identity: dict[str, str]
    noises: tuple[Noise, ...]


class Limit(NamedTuple):
    """The share of tok/s, or of a load's seconds, that may change; and its origin, for people."""

    share: float
    origin: str


def limit_of(policy: ThroughputPolicy, noise: Noise | None, what: What) -> Limit | str:
    """The policy's limit, else 2.8 sigma of the noise, else a default; or why there is none."""
    wanted = policy.max_regression
    if isinstance(wanted, float):
        return Limit(wanted, "policy.throughput.max-regression")
    if noise is None and wanted == CALIBRATED:
        why = f"and this machine's noise is not known; measure it with: {COMMAND}"
        return f"policy.throughput.max-regression is calibrated, {why}"
    if noise is None:
        default = DEFAULT_LOAD if what == "load" else DEFAULT
        return Limit(default, f"the default; {COMMAND} measures this machine's noise")
    if noise.limit < BLIND:
        return Limit(noise.limit, f"2.8 sigma of {noise.runs} unchanged runs, {COMMAND}")
    differ = f"Unchanged runs differ by sigma = {percent(noise.sigma)} ({noise.runs} runs)"
    says = "half the speed could pass for noise; quieten the machine, and repeat"
    return f"{differ}, so {says}: {COMMAND}"


def calibrations(runs: Sequence[Sequence[Speed]]) -> list[Calibration]:
    """The noise of all benchmarks that two runs have, by machine; `UnprovenError` of none."""
    found, speeds = [], (speed for run in runs for speed in run)
    for same in grouped((key_digest(speed.identity), speed) for speed in speeds).values():
        benchmarks = grouped((benchmark_of(speed), speed.median) for speed in same)
        noises = tuple(
            Noise(what=what, subject=subject, tokens=tokens, prompt=prompt, medians=tuple(medians))
            for (what, subject, tokens, prompt), medians in benchmarks.items()
            if len(medians) > 1
        )
        found += [Calibration(identity=same[0].identity, noises=noises)] if noises else []
    if not found:
        raise UnprovenError(
            f"No benchmark was in two runs of the same machine, out of {len(runs)}, so nothing is "
            f"known of noise; give {COMMAND} --runs=5, and shards that are benchmarked."
        )
    return found


def write(storage: Storage, calibration: Calibration) -> Path:
    """Store a machine's noise with its runs, atomically; noise of other benchmarks is kept.

    `UnprovenError` where it cannot be written, or the file that is there is damaged.
    """
    file = file_of(storage, calibration.identity)
    noises = {benchmark_of(noise): noise for noise in read(storage, calibration.identity)}
    noises |= {benchmark_of(noise): noise for noise in calibration.noises}
    both = calibration.model_copy(update={"noises": tuple(noises.values())})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, both.model_dump_json(indent=1).encode())
    except OSError as error:
        raise UnprovenError(f"{file} cannot be written ({error.strerror}).") from None
    return file


def read(storage: Storage, identity: Mapping[str, str]) -> tuple[Noise, ...]:
    """The stored noise of a machine, if any; `UnprovenError` of a damaged file, or another's."""
    file = file_of(storage, identity)
    try:
        calibration = Calibration.model_validate_json(read_regular(file, _MOST_BYTES))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise damaged(file, error, COMMAND) from None
    if calibration.identity != identity:
        raise damaged(file, "it is another machine's", COMMAND)
    return calibration.noises


def noise_of(storage: Storage, speed: Speed) -> Noise | None:
    """The noise of a benchmark, if it was measured on this machine; errors as of `read`."""
    noises = {benchmark_of(noise): noise for noise in read(storage, speed.identity)}
    return noises.get(benchmark_of(speed))


def file_of(storage: Storage, identity: Mapping[str, str]) -> Path:
    """The file of a machine's noise: no `.json`, which `--benchmark-compare='*'` would read."""
    return folder_of(storage) / f"{key_digest(dict(identity))[:16]}.calibration"


def benchmark_of(measured: Noise | Speed) -> Benchmark:
    """The key that tells benchmarks of one machine apart."""
    return measured.what, measured.subject, measured.tokens, measured.prompt


@dataclass(frozen=True)
class Baseline:
    """A stored measurement of run `0003`, its day, and the machine's noise where it is known."""

    speed: Speed
    run: str
    when: str = ""
    noise: Noise | None = None


@dataclass(frozen=True)
class Missing:
    """There is no baseline: what is stored instead, and what differs."""

    why: str
    remedy: str = ""


def find(storage: Storage, now: Speed, which: str | None = None) -> Baseline | Missing:
    """The baseline of a benchmark: the newest run on this machine that has it.

    `which` is the run that `--benchmark-compare` names instead. `UnprovenError` where it does not
    exist, or a run on the way is damaged.
    """
    why = ""
    for run in map(read_stored, reversed(files_of(storage, which))):
        for speed in run.speeds.values():
            if not (other := differences(now, speed)):
                return Baseline(speed, run.number, run.when, noise_of(storage, now))
            if (now.what, now.subject) == (speed.what, speed.subject):
                other_run = f"The stored run {run.number} is no baseline: {', and '.join(other)}."
                why = why or other_run
    return Missing(why or f"No run is stored in {folder_of(storage)} that has it.")


def newest_of(
    storage: Storage, identity: Mapping[str, str], subjects: Collection[str],
    which: str | None = None,
) -> StoredRun | Missing:  # fmt: skip
    """The newest stored run of a machine that has a benchmark of any of these shards and models.

    The machine's clock is ignored; `which` and errors are as of `find`.
    """
    why = f"No run is stored in {folder_of(storage)}."
    for run in map(read_stored, reversed(files_of(storage, which))):
        for speed in run.speeds.values():
            other = _other_machine(identity, speed)
            if not other and speed.subject in subjects:
                return run
            why = "No stored run of this machine has any of these benchmarks."
            if other:
                why = f"The stored run {run.number} is of another machine or backend: {other}."
    return Missing(why)


def differences(now: Speed, then: Speed) -> list[str]:
    """Why two measurements cannot be compared; empty where they can.

    Packages may differ: what a change of them does to the speed is the question.
    """
    if (now.what, now.subject) != (then.what, then.subject):
        return [f"it timed {then.what} of {then.subject}"]
    reasons = []
    if then.tokens != now.tokens:
        reasons.append(f"it computed {then.tokens} tokens a round, this one {now.tokens}")
    if then.prompt != now.prompt:
        reasons.append("it continued another prompt")
    if other := _other_machine(now.identity, then, ignored=()):
        reasons.append(f"it is of another machine or backend: {other}")
    return reasons


def _other_machine(
    here: Mapping[str, str], then: Speed, ignored: Collection[str] = ("timer",)
) -> str:
    """The properties of the machine that differ; empty if it is the same."""
    return "; ".join(
        f"{key} {then.identity.get(key, '')!r}, here {here.get(key, '')!r}"
        for key in dict.fromkeys((*here, *then.identity))
        if then.identity.get(key) != here.get(key) and key not in ignored
    )
