"""What runs on a worker: references, builds, measurements, and what it says of itself.

A worker has one thread, and so one task at a time. Of each run it keeps its project open.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from distributed import get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import Machine
from pytest_ane.cluster.job import Inputs, Parcel, inputs, unpacked_job, versions
from pytest_ane.gates.base import GateTest
from pytest_ane.gates.registry import GATES
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.digests import files_digest
from pytest_ane.mlprogram.errors import AneError, ClusterError, DiskError
from pytest_ane.mlprogram.executor.budget import process_budget
from pytest_ane.models.families.own import edited_since_import, make_importable
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import Project
from pytest_ane.tools.blame import blame_shard
from pytest_ane.tools.blame.analysis import Blame

PLUGIN = "pytest-ane"


@dataclass(frozen=True)
class WorkerSetup(WorkerPlugin):
    """What a worker's process knows; it has a `machine` where its task is that Mac's ANE."""

    label: str
    folder: Path
    cache: Path | None = None
    store: str | None = None
    machine: Machine | None = None
    name: str = field(default=PLUGIN, init=False)

    def setup(self, worker: Any) -> None:
        """Note the code that this process has imported, before anyone can change it on disk."""
        versions()


class FullDiskError(ClusterError):
    """The disk of the worker at an address takes no more: the task is another's."""

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.address)


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself: its host, built shards, and its Mac where it is for an ANE."""

    label: str
    versions: Mapping[str, str]
    inputs: Inputs
    built: frozenset[str]
    machine: Machine | None

    @property
    def builds(self) -> bool:
        """Whether it builds shards, and runs them on the CPU executor."""
        return self.machine is None


@dataclass(frozen=True)
class Facts:
    """What a verdict needs of a package at a worker, as of `Artifact`; and notes."""

    size: int
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    label: str = ""

    @property
    def digest(self) -> str:
        """Of the package, as of `Artifact`."""
        return files_digest(self.files)


@dataclass(frozen=True)
class Answer:
    """A gate's measurement, digests of the packages by shard, and where it was made."""

    measurement: Any
    digests: Mapping[str, str]
    environment: dict[str, str]
    notes: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Measured:
    """A shard's package, and its measurements by the CPU executor.

    Answers are as of `pickled`, an error where a test cannot be measured; those with a bug are left
    out, which is shown with its traceback when they are asked alone. Stored are entries that the
    store gave and took, as of `Project.exchanged`.
    """

    facts: Facts
    answers: Mapping[GateTest, bytes]
    stored: Mapping[str, int] = field(default_factory=dict)


def pickled(answer: Answer | AneError) -> bytes:
    """An answer as it waits for its test: all shards have one gate's tests before another's."""
    return zlib.compress(pickle.dumps(answer), level=1)


def unpickled(data: bytes) -> Answer | AneError:
    """An answer of a worker, which is trusted."""
    answer: Answer | AneError = pickle.loads(zlib.decompress(data))
    return answer


@dataclass(frozen=True)
class _Opened:
    label: str
    project: Project
    memory: int | None
    seconds: float | None
    notes: list[str]

    def taken_notes(self) -> tuple[str, ...]:
        notes = tuple(self.notes)
        self.notes.clear()
        return notes


_MOST_RUNS = 16
"""Runs that a process remembers; older ones are over."""
_jobs: dict[str, bytes] = {}
"""Runs that this process takes part in, by token."""


def introduce(token: str, job: bytes, asked: Mapping[str, str]) -> Introduction | None:
    """Let a worker take part; None of another kind, versions alone where they differ from here."""
    if (worker := _here()) is None:
        return None
    if versions() != asked:
        differing = ", ".join(n for n, known in versions().items() if asked.get(n) != known)
        print(f"left out of a run, which has another version of: {differing}", flush=True)
        return Introduction(worker.label, versions(), Inputs({}, {}), frozenset(), worker.machine)
    if edited_since_import():
        os._exit(0)  # A new process takes this one's place, and imports what is there now.
    _jobs[token] = job
    for old in [*_jobs][:-_MOST_RUNS]:
        del _jobs[old]
    with _opened(token) as run:
        shards, entry = run.project.shards, run.project.entry
        built = frozenset(s.qualified for s in shards if not s.artifact and entry(s).is_dir())
    with _opened(token, own=True) as run:
        return Introduction(worker.label, versions(), inputs(run.project), built, worker.machine)


def capture(token: str, model: str) -> Parcel:
    """Record the reference's hidden states of all golden prompts, which captured probes take."""
    with _opened(token) as run:
        opened = run.project.model(model)
        assert isinstance(opened, OpenModel)
        # What is wrong with prompts or source, the gates say that need them.
        with _but_for_the_disk():
            opened.capture()
        return Parcel.of(run.project.cache, run.project.cache.used)


def build(token: str, name: str, cases: bool, *parcels: Parcel) -> Parcel:
    """Build a shard of entries of other workers, and record its reference's outputs (`cases`)."""
    with _opened(token, parcels) as run:
        project, shard = run.project, _shard(run.project, name)
        artifact = project.artifact(shard)
        if cases:
            with _but_for_the_disk():
                project.cases(shard, artifact)
        known = {name for parcel in parcels for name in parcel.names}
        new = {path for path in project.cache.used if (path.parent.name, path.name) not in known}
        own = {artifact.path.parent} if shard.artifact is None else set()
        return Parcel.of(project.cache, new | own)


def measure_shard(token: str, name: str, tests: Sequence[GateTest], parcel: Parcel) -> Measured:
    """Facts of a shard's package and measurements for its tests, in one task: it is read once."""
    with _opened(token, [parcel]) as run:
        shard = _shard(run.project, name)
        artifact = run.project.artifact(shard)
        facts = Facts(artifact.size, dict(artifact.files), run.taken_notes(), run.label)
        answers: dict[GateTest, bytes] = {}
        for test in tests:
            try:
                context = run.project.open_shard(_asked(shard, test))
                answers[test] = pickled(_measured(run, test.gate, context, {name: facts.digest}))
            except DiskError:
                raise
            except AneError as error:
                answers[test] = pickled(error)
            except Exception:
                continue
        stored = dict(run.project.exchanged)
        run.project.exchanged.clear()
        return Measured(facts, answers, stored)


def measure(token: str, test: GateTest, *parcels: Parcel) -> Answer:
    """A gate's measurement of a shard or model, by the CPU executor, of the packages it needs."""
    return _measured_of(token, test, parcels, device=False)


def measure_on_device(token: str, test: GateTest, *parcels: Parcel) -> Answer:
    """As `measure`, by Core ML and this machine's Neural Engine."""
    return _measured_of(token, test, parcels, device=True)


def _measured_of(token: str, test: GateTest, parcels: Sequence[Parcel], *, device: bool) -> Answer:
    with _opened(token, parcels, device=device) as run:
        project = run.project
        if isinstance(project.backend, CoreMLBackend):
            project.backend.require_ane()
        if GATES[test.gate].scope == "shard":
            shards = [_shard(project, test.subject)]
            context: Any = project.open_shard(_asked(shards[0], test))
        else:
            shards = [shard for shard in project.shards if shard.model == test.subject]
            context = project.stack(test.subject, test.arithmetic)
        digests = {s.qualified: files_digest(project.artifact(s).files) for s in shards}
        return _measured(run, test.gate, context, digests)


def _asked(shard: Shard, test: GateTest) -> Shard:
    return shard.in_arithmetic((test.arithmetic,)) if GATES[test.gate].by_arithmetic else shard


def _measured(run: _Opened, gate: str, context: Any, digests: Mapping[str, str]) -> Answer:
    measurement = GATES[gate].measure(context)
    environment = run.project.backend.provenance()
    return Answer(measurement, digests, environment, run.taken_notes(), run.label)


def beside(token: str, gate: str, subject: str, recorded: Any, parcel: Parcel) -> Any:
    """A recorded measurement with what a machine can tell besides, as of `Gate.beside`."""
    with _opened(token, [parcel]) as run:
        return GATES[gate].beside(recorded, run.project.open_shard(_shard(run.project, subject)))


def explain(token: str, name: str, arithmetic: tuple[Arithmetic, ...], parcel: Parcel) -> Blame:
    """The weights and operations that a shard's error comes from."""
    with _opened(token, [parcel]) as run:
        return blame_shard(run.project, _shard(run.project, name).in_arithmetic(arithmetic))


@contextmanager
def _but_for_the_disk() -> Iterator[None]:
    try:
        yield
    except DiskError:
        raise
    except AneError:
        pass


def _here() -> WorkerSetup | None:
    plugin = get_worker().plugins.get(PLUGIN)
    return plugin if isinstance(plugin, WorkerSetup) else None


@contextmanager
def _opened(
    token: str, parcels: Sequence[Parcel] = (), *, device: bool = False, own: bool = False
) -> Iterator[_Opened]:
    """The run's project here, with what came from elsewhere; `own` models are this checkout's."""
    run = _project(token, device, own)
    try:
        with process_budget(run.memory, run.seconds), run.project.use():
            run.project.cache.used.clear()
            for parcel in parcels:
                parcel.settle(run.project.cache)
            yield run
    except DiskError as error:
        raise FullDiskError(str(error), get_worker().address) from None


@lru_cache(maxsize=4)
def _project(token: str, device: bool, own: bool) -> _Opened:
    worker, notes = _here(), list[str]()
    assert worker is not None
    job = unpacked_job(_jobs[token], worker.folder)
    make_importable(job.manifest)
    project = Project(
        manifest=job.manifest,
        shards=job.shards,
        cache_root=worker.cache,
        store=job.store if worker.store is None else worker.store,
        backend_name="coreml" if device else "cpu",
        units=job.units,
        device_timeout=job.device_timeout,
        machine=worker.machine if device else None,
        judged=lambda shard: shard.qualified in job.judged,
        identities={} if own else job.identities,
        notify=notes.append,
        # What the disk must hold is what this process builds next, not the whole run.
        scope=(),
    )
    return _Opened(worker.label, project, job.memory, job.seconds, notes)


def _shard(project: Project, name: str) -> Shard:
    return next(shard for shard in project.shards if shard.qualified == name)
