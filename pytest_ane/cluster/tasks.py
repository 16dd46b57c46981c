"""What runs on a worker: references, builds, measurements, and what it says of itself.

A worker has one thread, and so one task at a time. Of each run it keeps its project open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from distributed import get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from pytest_ane.analysis.blame import Blame
from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import Machine
from pytest_ane.cluster.job import inputs, unpacked, versions
from pytest_ane.cluster.parcel import Parcel
from pytest_ane.core.digests import files_digest
from pytest_ane.core.errors import AneError, ClusterError, DiskError
from pytest_ane.families import make_importable
from pytest_ane.gates import GATES
from pytest_ane.manifest import Shard
from pytest_ane.project.blame import blame_shard
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import Project
from pytest_ane.reference.budget import process_budget

PLUGIN = "pytest-ane"


@dataclass(frozen=True)
class WorkerSetup(WorkerPlugin):
    """What a process of `pytest-ane worker` knows of its machine.

    Attributes:
        name: of plugin.
        label: what people call the worker: its host.
        folder: its checkout.
        cache: the cache folder; None for the user's own.
        store: in place of the run's; None to use that.
        machine: this Mac, if its Neural Engine is what the process is for.
    """

    label: str
    folder: Path
    cache: Path | None = None
    store: str | None = None
    machine: Machine | None = None
    name: str = field(default=PLUGIN, init=False)


class FullDiskError(ClusterError):
    """A worker's disk takes no more: the task is another's.

    Attributes:
        address: the worker's.
    """

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.address)


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself when a run asks.

    Attributes:
        label: its host.
        versions: of Python, libraries and code.
        inputs: digests of what its checkout gives the run, or why there is none.
        built: qualified ids of shards that its cache has.
        machine: its Mac, where it is for a Neural Engine, and for that alone.
    """

    label: str
    versions: Mapping[str, str]
    inputs: Mapping[str, str]
    built: frozenset[str]
    machine: Machine | None

    @property
    def builds(self) -> bool:
        """Whether it builds shards, and runs them on the CPU executor."""
        return self.machine is None


@dataclass(frozen=True)
class Facts:
    """What a verdict needs of a package that lies elsewhere.

    Attributes:
        size: bytes.
        files: digests by name, as of `Artifact.files`.
        notes: what backend and cache had to tell.
        label: the worker's.
    """

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
    """A measurement, and where it was made.

    Attributes:
        measurement: the gate's record.
        environment: the backend's provenance there.
        notes: what backend and cache had to tell.
        label: the worker's.
    """

    measurement: Any
    environment: dict[str, str]
    notes: tuple[str, ...]
    label: str


_jobs: dict[str, bytes] = {}
"""Runs that this process takes part in, by token."""


def introduce(token: str, job: bytes, asked: Mapping[str, str]) -> Introduction | None:
    """Let a worker take part in a run, and ask what it is.

    Args:
        token: the run's, by which its tasks name it.
        job: packed.
        asked: the versions of the machine that judges.

    Returns:
        None from a worker that `pytest-ane worker` did not start. Of one with other versions
        nothing else is asked, for it may not be able to read the run.
    """
    worker = _here()
    if worker is None:
        return None
    if versions() != asked:
        return Introduction(worker.label, versions(), {}, frozenset(), worker.machine)
    _jobs[token] = job
    with _opened(token) as project:
        built = frozenset(
            s.qualified for s in project.shards if not s.artifact and project.entry(s).is_dir()
        )
    with _opened(token, own=True) as project:
        return Introduction(worker.label, versions(), inputs(project), built, worker.machine)


def capture(job: str, model: str) -> Parcel:
    """Record the reference's hidden states of all golden prompts, which captured probes take."""
    with _opened(job) as project:
        opened = project.model(model)
        assert isinstance(opened, OpenModel)
        opened.capture()
        return Parcel.of(project.cache, project.cache.used)


def build(job: str, name: str, cases: bool, *parcels: Parcel) -> Parcel:
    """Build a shard, and record its reference's outputs where gates will compare with them.

    Args:
        job: the run's token.
        name: the shard's qualified id.
        cases: whether they will.
        parcels: entries of other workers that it needs.
    """
    with _opened(job, parcels) as project:
        shard = _shard(project, name)
        artifact = project.artifact(shard)
        if cases and shard.reference == "float32":
            # What is wrong with its probes or its reference, the gate says that needs them.
            try:
                project.cases(shard, artifact)
            except DiskError:
                raise
            except AneError:
                pass
        known = {name for parcel in parcels for name in parcel.names}
        new = {path for path in project.cache.used if (path.parent.name, path.name) not in known}
        return Parcel.of(project.cache, new)


def look(job: str, name: str, parcel: Parcel) -> Facts:
    """What a verdict needs of a shard's package."""
    with _opened(job, [parcel]) as project:
        artifact = project.artifact(_shard(project, name))
        return Facts(artifact.size, dict(artifact.files), _taken_notes(), _label())


def measure(job: str, gate: str, subject: str, device: bool, *parcels: Parcel) -> Answer:
    """A gate's measurement of a shard or model.

    Args:
        job: the run's token.
        gate: its name.
        subject: the shard's qualified id, or the model's name.
        device: whether Core ML and this machine's Neural Engine are asked.
        parcels: the packages, and what goes with them.

    Raises:
        UnprovenError: there is no Neural Engine here.
    """
    with _opened(job, parcels, device=device) as project:
        if isinstance(project.backend, CoreMLBackend):
            project.backend.require_ane()
        context = (
            project.open_shard(_shard(project, subject))
            if GATES[gate].scope == "shard"
            else project.stack(subject)
        )
        measured = GATES[gate].measure(context)
        return Answer(measured, project.backend.provenance(), _taken_notes(), _label())


def beside(job: str, gate: str, subject: str, recorded: Any, parcel: Parcel) -> Any:
    """A recorded measurement with what a machine can tell besides, as of `Gate.beside`."""
    with _opened(job, [parcel]) as project:
        context = project.open_shard(_shard(project, subject))
        return GATES[gate].beside(recorded, context)


def explain(job: str, name: str, *parcels: Parcel) -> Blame:
    """The weights and operations that a shard's error comes from."""
    with _opened(job, parcels) as project:
        return blame_shard(project, _shard(project, name))


_notes: list[str] = []
"""What backends and caches had to tell since the last task that answered."""


def _taken_notes() -> tuple[str, ...]:
    notes = tuple(_notes)
    _notes.clear()
    return notes


def _here() -> WorkerSetup | None:
    plugin = get_worker().plugins.get(PLUGIN)
    return plugin if isinstance(plugin, WorkerSetup) else None


def _label() -> str:
    worker = _here()
    return worker.label if worker else ""


@contextmanager
def _opened(
    job: str, parcels: Sequence[Parcel] = (), *, device: bool = False, own: bool = False
) -> Iterator[Project]:
    """The run's project in this process, with entries that came from elsewhere.

    Args:
        job: the run's token.
        parcels: the entries.
        device: whether Core ML runs artifacts, not the CPU executor.
        own: whether models are what this checkout has, not what the run says.
    """
    project, memory, seconds = _project(job, device, own)
    try:
        with process_budget(memory, seconds), project.use():
            project.cache.used.clear()
            for parcel in parcels:
                parcel.settle(project.cache)
            yield project
    except DiskError as error:
        raise FullDiskError(str(error), get_worker().address) from None


@lru_cache(maxsize=6)
def _project(token: str, device: bool, own: bool) -> tuple[Project, int | None, float | None]:
    worker = _here()
    assert worker is not None
    job = unpacked(_jobs[token], worker.folder)
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
        notify=_notes.append,
        # What the disk must hold is what this process builds next, not the whole run.
        scope=(),
    )
    return project, job.memory, job.seconds


def _shard(project: Project, name: str) -> Shard:
    return next(shard for shard in project.shards if shard.qualified == name)
