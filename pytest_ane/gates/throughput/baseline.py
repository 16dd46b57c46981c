"""The stored run that a benchmark is compared with: the newest of the same machine that has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_ane.gates.throughput.noise import Noise, noise_of
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import Storage, StoredRun, files_of, folder_of, read_stored


@dataclass(frozen=True)
class Baseline:
    """A stored measurement to compare with.

    Attributes:
        run: number of its run, `0003`.
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
        why: what is stored instead, and what differs.
    """

    why: str
    remedy: str = ""


def find(storage: Storage, now: Speed, which: str | None = None) -> Baseline | Missing:
    """The baseline of a benchmark: the newest run on this machine that has it.

    `which` is the run that `--benchmark-compare` names instead.

    Raises:
        UnprovenError: a run on the way to it is damaged, or the named one does not exist.
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
    storage: Storage,
    identity: Mapping[str, str],
    subjects: Collection[str],
    which: str | None = None,
) -> StoredRun | Missing:
    """The newest stored run of a machine that has a benchmark of any of these shards and models.

    The machine's clock is ignored; `which` is as `find` takes it.

    Raises:
        UnprovenError: a run on the way to it is damaged, or the named one does not exist.
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
