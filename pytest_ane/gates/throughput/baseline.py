"""The stored run that a benchmark is compared with: the newest of the same machine that has it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_ane.core.errors import UnprovenError
from pytest_ane.gates.throughput.noise import Noise, noise_of
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.storage import Storage, files_of, runs_elsewhere
from pytest_ane.gates.throughput.stored import Stored, read_stored


@dataclass(frozen=True)
class Baseline:
    """What a benchmark is compared with.

    Attributes:
        speed: the stored measurement.
        run: its number, `0003`.
        when: the day it was recorded.
        noise: how much unchanged runs differ on this machine, where that was measured.
    """

    speed: Speed
    run: str
    when: str = ""
    noise: Noise | None = None


@dataclass(frozen=True)
class Missing:
    """There is no baseline.

    Attributes:
        why: a sentence: what is stored instead, and what differs.
    """

    why: str


def find(storage: Storage, now: Speed, which: str | None = None) -> Baseline | Missing:
    """The baseline of a benchmark.

    Args:
        storage: pytest-benchmark's own, or that of a model's `baselines`.
        now: what was measured.
        which: the run that `--benchmark-compare` names; None for the newest that has this
            benchmark on this machine.

    Raises:
        UnprovenError: a run on the way to it is damaged, or the named one does not exist.
    """
    seen = []
    for file in reversed(files_of(storage, which)):
        run = read_stored(file)
        for speed in run.speeds:
            if not differences(now, speed):
                return Baseline(speed, run.run, run.when, noise_of(storage, now))
        seen.append(run)
    return Missing(_why(now, seen or _readable(runs_elsewhere(storage)), storage))


def differences(now: Speed, then: Speed) -> list[str]:
    """Why two measurements cannot be compared; empty where they can.

    Packages may differ: what a change of them does to the speed is the question.
    """
    if (now.what, now.subject) != (then.what, then.subject):
        return [f"it timed {then.what} of {then.subject}"]
    found = []
    if then.tokens != now.tokens:
        found.append(f"it computed {then.tokens} tokens a round, this one {now.tokens}")
    if then.prompt != now.prompt:
        found.append("it continued another prompt")
    keys = dict.fromkeys((*now.identity, *then.identity))
    other = [
        f"{key} {then.identity.get(key, '')!r}, here {now.identity.get(key, '')!r}"
        for key in keys
        if then.identity.get(key) != now.identity.get(key)
    ]
    return found + ([f"it is of another machine or backend: {'; '.join(other)}"] if other else [])


def _why(now: Speed, runs: Sequence[Stored], storage: Storage) -> str:
    """What comes nearest, and why it is none; of runs as near the first."""
    if not runs:
        return f"No run is stored in {storage.path}."
    close = [
        (then.identity != now.identity, then.tokens != now.tokens, -at, run, then)
        for at, run in enumerate(reversed(runs))
        for then in run.speeds
        if (then.what, then.subject) == (now.what, now.subject)
    ]
    if not close:
        count = "run has" if len(runs) == 1 else f"{len(runs)} runs have"
        return f"The stored {count} no {now.what} of {now.subject}."
    *_, run, then = min(close, key=lambda one: one[:3])
    return f"The stored run {run.run} is no baseline: {', and '.join(differences(now, then))}."


def _readable(files: Sequence[Path]) -> list[Stored]:
    """Runs that are not asked for, only spoken of: what is damaged there is left out."""
    found = []
    for file in files:
        with suppress(UnprovenError):
            found.append(read_stored(file))
    return found
