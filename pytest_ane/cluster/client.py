"""The cluster as a run sees it: which workers there are, and what they are doing.

Each shard is one worker's: it is built, compared and measured there, so that nothing has to travel
but what a Neural Engine or a whole stack needs. A worker has few shards at a time, and gets another
when one is done. What a lost worker held is another's, up to three times.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import dask
from distributed import Client, Future, KilledWorker

from pytest_ane.analysis.blame import Blame
from pytest_ane.build import Artifact, BuildRecord, Cache
from pytest_ane.build.record import PACKAGE
from pytest_ane.cluster import tasks
from pytest_ane.cluster.job import Job, versions
from pytest_ane.cluster.parcel import Parcel
from pytest_ane.cluster.tasks import Answer, Facts, FullDiskError, Introduction
from pytest_ane.core.errors import AneError, BuildError, ClusterError, UnprovenError
from pytest_ane.core.text import printable
from pytest_ane.gates import GATES
from pytest_ane.manifest import Shard

AT_ONCE = 2
"""Shards that one worker has: one at work, and the next."""
_MOST_LOST = 3
"""Workers that may be lost with a task before it is given up."""
_PAUSE = 0.2
"""Seconds between two looks at who is there, while the run waits."""
_SMALL, _LARGE = 10, 600
"""Seconds that a measurement, or a package, may take to arrive from a worker that answers."""

_Future: TypeAlias = "Future[Any]"


@dataclass(eq=False)
class _Worker:
    """A worker that takes part.

    Attributes:
        address: Dask's.
        told: what it says of itself.
        memory: bytes that it may take.
        works: the shards that it has.
    """

    address: str
    told: Introduction
    memory: int
    works: dict[str, _Work] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        """Of how many shards something is still to be done."""
        return sum(not work.is_done for work in self.works.values())


@dataclass(eq=False)
class _Work:
    """A shard at a worker: its package, facts of it, and measurements by gate."""

    worker: _Worker
    capture: _Capture | None
    built: _Future
    facts: _Future
    measured: dict[str, _Future] = field(default_factory=dict)
    is_done: bool = False

    def look(self) -> None:
        """Note that nothing is left to do; what was done stays so when results are taken."""
        futures = (self.built, self.facts, *self.measured.values())
        self.is_done = self.is_done or all(future.done() for future in futures)


@dataclass(eq=False)
class _Capture:
    """A model's hidden states, recorded at any of some workers."""

    addresses: frozenset[str]
    future: _Future


class RemoteArtifact(Artifact):
    """A package at a worker; it is fetched when its path is asked for.

    Args:
        facts: what is known of it.
        fetch: puts the package into this machine's cache, and gives its path.
    """

    def __init__(self, facts: Facts, fetch: Callable[[], Path]) -> None:
        vars(self).update(digest=facts.digest, size=facts.size, record=facts.record, _fetch=fetch)
        vars(self)["files"] = facts.files

    files: Any
    record: BuildRecord | None

    @cached_property
    def path(self) -> Path:
        """In this machine's cache; `UnprovenError` where the worker is lost."""
        path: Path = vars(self)["_fetch"]()
        return path


class _LostError(Exception):
    """A worker is gone; who waited for it turns to another."""


class Cluster:
    """The workers that take part in a run, and what is asked of them.

    Args:
        url: of Dask's scheduler, such as `tcp://10.0.0.7:8786`.
        timeout: seconds to wait for the scheduler, for a first worker, and for a Neural Engine.
        say: takes a sentence for the person, such as on a worker that is left out.
        show: takes the shards that are at work, and how many are done, several times a second.

    Raises:
        ClusterError: no scheduler answers.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        say: Callable[[str], None],
        show: Callable[[Sequence[str], int], None] = lambda shards, done: None,
    ) -> None:
        self.url, self._timeout, self._say, self._show = url, timeout, say, show
        self._workers: dict[str, _Worker] = {}
        self._introductions: dict[str, _Future] = {}
        self._left_out: dict[str, str] = {}
        self._works: dict[str, _Work] = {}
        self._captures: dict[str, _Capture] = {}
        self._given_up: dict[str, UnprovenError] = {}
        self._lost: Counter[str] = Counter()
        self._known: dict[str, Facts] = {}
        self._bell = threading.Event()
        self._looked = -_PAUSE
        self._joined = False
        self._has_waited = False
        self._released: set[str] = set()
        self._token = uuid.uuid4().hex
        for name in ("distributed", "distributed.client", "distributed.core"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            with warnings.catch_warnings(), dask.config.set(_settings(timeout)):
                warnings.simplefilter("ignore")
                self._client = Client(url, timeout=timeout, set_as_default=False)
        except (OSError, ValueError, NotYetError, ImportError) as error:
            raise ClusterError(
                f"No scheduler answers at {printable(url)} ({printable(_first(error), 200)}); "
                "start one with: dask scheduler"
            ) from None

    def join(self, job: Job, inputs: dict[str, str], cache: Cache, plan: Plan) -> None:
        """Let all workers that are there take part.

        Args:
            job: the run.
            inputs: what this machine's checkout gives it, as of `job.inputs`.
            cache: this machine's, for packages that are fetched.
            plan: what will be asked, in its order.

        Raises:
            ClusterError: none is there, or none can take part.
        """
        self._job, self._inputs, self._cache, self._plan = job.packed(), inputs, cache, plan
        self._shards = {shard.qualified: shard for shard in job.shards}
        end = time.monotonic() + self._timeout
        while not self._workers or self._introductions:
            if time.monotonic() > end and (self._workers or not self._introductions):
                break
            self._look(now=True)
            if not self._workers or self._introductions:
                self._bell.wait(_PAUSE)
        if not self._workers:
            raise ClusterError(self._nobody("No worker is connected to", ""))
        self._joined = True

    @property
    def sentence(self) -> str:
        """`3 workers on 2 hosts, 1 of them with a Neural Engine`."""
        workers = self._workers.values()
        hosts = {worker.told.label for worker in workers}
        devices = sum(worker.told.machine is not None for worker in workers)
        with_ane = f", {devices} of them for a Neural Engine" if devices else ""
        return f"{_count(len(workers), 'worker')} on {_count(len(hosts), 'host')}{with_ane}"

    def artifact(self, shard: Shard) -> RemoteArtifact:
        """A shard's package, which a worker has built or looked up.

        One that was lost with its workers has no digest; gates are told when they ask of it.

        Raises:
            AneError: it cannot be built.
        """
        if shard.qualified not in self._plan.first:
            self._released.add(shard.model)  # Whoever asks has asked its canaries.
        try:
            facts = self._facts(shard)
        except UnprovenError:
            facts = Facts("", 0, {}, None)
        return RemoteArtifact(facts, lambda: self._fetched(shard))

    def measure(self, gate: str, subject: str) -> Answer:
        """A gate's measurement of a shard or model, by the CPU executor.

        Raises:
            UnprovenError: no worker is left that could tell.
            AneError: it cannot be measured.
        """
        if GATES[gate].scope == "model":
            return self._on_one(gate, subject)
        answer: Answer = self._asked(
            self._shards[subject], lambda work: self._measuring(work, gate, subject)
        )
        self._works[subject].measured.pop(gate, None)
        return answer

    def measure_on_device(self, gate: str, subject: str, system: Callable[[str], bool]) -> Answer:
        """A gate's measurement by Core ML, on a worker with a Neural Engine.

        Args:
            gate: its name.
            subject: a shard's qualified id, or a model's name.
            system: whether one such as `macOS 26.1` will do.

        Raises:
            UnprovenError: no such worker is there, or it was lost.
            AneError: it cannot be measured.
        """
        return self._on_one(gate, subject, system)

    def beside(self, gate: str, subject: str, recorded: Any) -> Any:
        """A recorded measurement with what a worker can tell besides, as of `Gate.beside`."""
        return self._asked(
            self._shards[subject],
            lambda work: self._submit(
                tasks.beside, gate, subject, recorded, work.built, at=work.worker
            ),
        )

    def explain(self, shard: Shard) -> Blame:
        """The weights and operations that a shard's error comes from."""
        blame: Blame = self._asked(
            shard,
            lambda work: self._submit(tasks.explain, shard.qualified, work.built, at=work.worker),
        )
        return blame

    def close(self) -> None:
        """Cancel what is not begun, and leave; workers finish what they have begun."""
        futures = [capture.future for capture in self._captures.values()]
        futures += self._introductions.values()
        for work in self._works.values():
            futures += [work.built, work.facts, *work.measured.values()]
        with suppress(Exception):
            self._client.cancel(futures)
        with suppress(Exception):
            self._client.close(timeout=_SMALL)

    # Shards at workers.

    def _asked(self, shard: Shard, future_of: Callable[[_Work], _Future]) -> Any:
        """What a future of a shard gives; from another worker, where one is lost."""
        while True:
            work = self._begun(shard)
            try:
                return self._given(future_of(work), {shard.qualified: work})
            except _LostError:
                continue
            except FullDiskError as error:
                self._leave_out(error.address, str(error))

    def _facts(self, shard: Shard) -> Facts:
        """What is known of a shard's package.

        Raises:
            BuildError: another worker had built it before, with other bytes.
        """
        facts: Facts = self._asked(shard, lambda work: work.facts)
        for note in facts.notes:
            self._say(f"{facts.label}: {note}")
        before = self._known.setdefault(shard.qualified, facts)
        if before.digest != facts.digest:
            raise BuildError(
                f"{shard.qualified}: {facts.label} built other bytes ({facts.digest[:12]}) than "
                f"{before.label} before ({before.digest[:12]}), so nothing is compared; see that "
                "both have the same libraries, or give the shard to one of them."
            )
        return facts

    def _begun(self, shard: Shard) -> _Work:
        """A shard's work, given to a worker that has room if need be.

        Raises:
            UnprovenError: it was given up, or no worker can build it.
        """
        name, end = shard.qualified, time.monotonic() + self._timeout
        while name not in self._works:
            if name in self._given_up:
                raise self._given_up[name]
            if (worker := self._free(shard)) is not None:
                self._assign(shard, worker)
                break
            able = any(self._can_build(w, shard) for w in self._workers.values())
            if not able and time.monotonic() > end:
                self._given_up[name] = UnprovenError(
                    self._nobody(f"{name}: no worker can build it at", name)
                )
            self._bell.wait(_PAUSE)
            self._bell.clear()
            self._look(now=True)
        return self._works[name]

    def _measuring(self, work: _Work, gate: str, name: str) -> _Future:
        if gate not in work.measured:
            work.measured[gate] = self._submit(
                tasks.measure, gate, name, False, work.built, at=work.worker
            )
        return work.measured[gate]

    def _free(self, shard: Shard) -> _Worker | None:
        """A worker with room for a shard: one that has its package, or least to do."""
        name = shard.qualified
        free = (
            worker for worker in self._workers.values()
            if self._can_build(worker, shard) and self._has_room(worker, name)
        )  # fmt: skip
        return min(free, key=lambda w: (name not in w.told.built, w.busy), default=None)

    def _assign(self, shard: Shard, worker: _Worker) -> None:
        """Give a shard to a worker, with all that will be asked of it."""
        name = shard.qualified
        cases = name in self._plan.compared
        capture = self._capture(shard.model) if cases and shard.probes.of_prompts else None
        needs = [capture.future] if capture else []
        built = self._submit(tasks.build, name, cases, *needs, at=worker)
        facts = self._submit(tasks.look, name, built, at=worker)
        work = self._works[name] = worker.works[name] = _Work(worker, capture, built, facts)
        for gate in self._plan.asked.get(name, ()):
            self._measuring(work, gate, name)

    def _has_room(self, worker: _Worker, name: str) -> bool:
        """Whether a worker takes a shard; one with which a worker was lost has it for itself."""
        if self._lost[name]:
            return not worker.busy
        alone = any(self._lost[n] for n, work in worker.works.items() if not work.is_done)
        return worker.busy < AT_ONCE and not alone

    def _capture(self, model: str) -> _Capture:
        if model not in self._captures:
            able = [worker.address for worker in self._workers.values() if self._has(worker, model)]
            future = self._client.submit(
                tasks.capture, self._token, model, workers=able, pure=False
            )
            self._captures[model] = _Capture(frozenset(able), future)
        return self._captures[model]

    def _can_build(self, worker: _Worker, shard: Shard) -> bool:
        return self._has(worker, shard.qualified) and (
            shard.artifact is not None or self._has(worker, shard.model)
        )

    def _has(self, worker: _Worker, name: str) -> bool:
        """Whether a worker builds, and has what this machine has for a model or shard."""
        return worker.told.builds and worker.told.inputs.get(name) == self._inputs.get(name)

    def _lose(self, worker: _Worker) -> None:
        """Forget what a worker had that is gone; what it had at work may be the cause."""
        for name, work in [*worker.works.items()]:
            self._lost[name] += not work.is_done
            if self._lost[name] > _MOST_LOST:
                self._given_up[name] = _many_lost(name, worker)
            self._drop(name)

    def _drop(self, name: str) -> None:
        """Take a shard from its worker; what is not begun there is cancelled."""
        work = self._works.pop(name)
        del work.worker.works[name]
        with suppress(Exception):
            self._client.cancel([work.built, work.facts, *work.measured.values()])

    def _recapture(self) -> None:
        """Begin again with hidden states that were lost with all workers that might have them."""
        for model, capture in [*self._captures.items()]:
            if capture.addresses & self._workers.keys() or capture.future.status == "finished":
                continue
            del self._captures[model]
            waiting = [n for n, w in self._works.items() if w.capture is capture]
            for name in waiting:
                if not self._works[name].built.done():
                    self._drop(name)

    def _fetched(self, shard: Shard) -> Path:
        """A shard's package in this machine's cache."""
        if shard.artifact is not None:
            return shard.artifact
        parcel: Parcel = self._asked(shard, lambda work: work.built)
        parcel.settle(self._cache)
        key = next(name.key for name in parcel.names if name.kind == "artifacts")
        return self._cache.path("artifacts", key) / PACKAGE

    # Whole models, and Neural Engines.

    def _on_one(
        self, gate: str, subject: str, system: Callable[[str], bool] | None = None
    ) -> Answer:
        """Measure at one worker what others have built; with a system at a Neural Engine."""
        shards = [shard for n, shard in self._shards.items() if subject in (n, shard.model)]
        lost = 0
        while True:
            for shard in shards:
                self._facts(shard)
            works = {shard.qualified: self._works[shard.qualified] for shard in shards}
            worker = self._device(system) if system else self._stack_worker(subject)
            built = [work.built for work in works.values()]
            future = self._submit(
                tasks.measure, gate, subject, system is not None, *built, at=worker
            )
            try:
                answer: Answer = self._given(future, works, worker)
                return answer
            except _LostError:
                lost += worker.address not in self._workers
                if lost > _MOST_LOST:
                    raise _many_lost(subject, worker) from None
            except FullDiskError as error:
                self._leave_out(error.address, str(error))

    def _stack_worker(self, model: str) -> _Worker:
        """Where a whole model is measured: at the worker with its weights and most memory."""
        able = [worker for worker in self._workers.values() if worker.told.builds]
        return max(able, key=lambda w: (self._has(w, model), w.memory, -w.busy))

    def _device(self, system: Callable[[str], bool]) -> _Worker:
        """The worker with a Neural Engine that has least to do; waited for once in a run."""
        end = time.monotonic() + (0 if self._has_waited else self._timeout)
        while True:
            able = [
                worker for worker in self._workers.values()
                if worker.told.machine is not None and system(worker.told.machine.os)
            ]  # fmt: skip
            if able:
                return able[0]
            if time.monotonic() > end:
                self._has_waited = True
                raise UnprovenError(
                    f"no worker with a Neural Engine that would do is connected to {self.url}; on "
                    f"a Mac, run: pytest-ane worker {self.url}"
                )
            self._bell.wait(_PAUSE)
            self._look(now=True)

    # Futures, and who is there.

    def _submit(self, task: Callable[..., Any], *args: Any, at: _Worker) -> _Future:
        resource = "ANE" if at.told.machine is not None else "build"
        future = self._client.submit(
            task, self._token, *args, workers=[at.address], resources={resource: 1}, pure=False
        )
        future.add_done_callback(lambda _: self._bell.set())
        return future

    def _given(
        self, future: _Future, works: Mapping[str, _Work], worker: _Worker | None = None
    ) -> Any:
        """A future's result, as soon as it is there.

        Args:
            future: of a task.
            works: what it rests on.
            worker: where it runs, if that is none of theirs.

        Raises:
            _LostError: one of these is lost.
            UnprovenError: the scheduler is gone.
        """
        patience = _SMALL
        while True:
            self._bell.clear()
            self._look()
            if any(self._works.get(name) is not work for name, work in works.items()):
                raise _LostError
            if worker is not None and worker.address not in self._workers:
                raise _LostError
            if future.status == "finished":
                with suppress(NotYetError):
                    return future.result(timeout=patience)
                patience = _LARGE
            elif future.status == "error":
                error = future.exception()
                if isinstance(error, KilledWorker):
                    raise _LostError
                if isinstance(error, AneError):
                    raise error
                future.result()  # Raises it with its traceback there.
            elif future.status in ("cancelled", "lost"):
                self._require_scheduler()
                raise _LostError
            else:
                self._bell.wait(_PAUSE)

    def _require_scheduler(self) -> None:
        if self._client.status != "running":
            raise UnprovenError(
                f"the scheduler {self.url} is gone; start it and its workers again, and run again: "
                "what was built is kept"
            )

    def _look(self, *, now: bool = False) -> None:
        """See who came and who went, and give workers that have little to do more."""
        if not now and time.monotonic() - self._looked < _PAUSE:
            return
        self._looked = time.monotonic()
        self._require_scheduler()
        try:
            # `scheduler_info` may give what a callback has asked meanwhile, without any workers.
            scheduler: Any = self._client.scheduler
            known = self._client.sync(scheduler.identity, n_workers=-1)["workers"]
        except Exception:
            self._require_scheduler()
            return
        for work in self._works.values():
            work.look()
        for address in self._workers.keys() - known.keys():
            self._lose(self._workers.pop(address))
        self._recapture()
        for address in known.keys() - self._workers.keys() - self._left_out.keys():
            self._introduce(address, known[address])
        if self._joined:
            self._fill()
        at_work = [name for name, work in self._works.items() if not work.is_done]
        self._show(at_work, len(self._works) - len(at_work))

    def _introduce(self, address: str, known: dict[str, Any]) -> None:
        future = self._introductions.get(address)
        if future is None:
            self._introductions[address] = future = self._client.submit(
                tasks.introduce, self._token, self._job, versions(), workers=[address], pure=False
            )
            future.add_done_callback(lambda _: self._bell.set())
        if not future.done():
            return
        del self._introductions[address]
        if future.status == "error":
            error = future.exception()
            why = str(error) if isinstance(error, AneError) else f"{type(error).__name__}: {error}"
            self._leave_out(address, f"it cannot take part ({why})")
            return
        with suppress(NotYetError):
            told: Introduction | None = future.result(timeout=_SMALL)
            if why := _unfit(told):
                self._leave_out(address, why)
            else:
                assert told is not None
                self._workers[address] = _Worker(address, told, known["memory_limit"])
                self._tell_lacks(told)

    def _tell_lacks(self, told: Introduction) -> None:
        """Say what a worker's checkout lacks; it takes no part in that."""
        for name, digest in self._inputs.items():
            own = told.inputs.get(name, "")
            if told.builds and own != digest:
                why = own if " " in own else "its files or weights differ from those here"
                self._say(f"the worker on {told.label} builds nothing of {name}: {why}")

    def _leave_out(self, address: str, why: str) -> None:
        worker = self._workers.pop(address, None)
        self._left_out[address] = why
        for name in [*worker.works] if worker else ():
            self._drop(name)
        label = worker.told.label if worker else address
        self._say(f"the worker on {label} is left out: {why}")

    def _nobody(self, what: str, name: str) -> str:
        """A sentence with the scheduler, why the workers there will not do, and how to add one."""
        reasons = list(dict.fromkeys(self._left_out.values()))
        for worker in self._workers.values():
            told = worker.told.inputs.get(name) or worker.told.inputs.get(name.partition(":")[0])
            reasons += [told] if told and " " in told else []
        why = f" ({'; '.join(reasons[:3])})" if reasons else ""
        return (
            f"{what} {self.url}{why}; in a checkout on another machine, run: "
            f"pytest-ane worker {self.url}"
        )

    def _fill(self) -> None:
        """Give the next shards to workers that have room; those whose canaries passed."""
        for name in self._plan.rest(self._works.keys() | self._given_up.keys(), self._released):
            shard = self._shards[name]
            if (worker := self._free(shard)) is None:
                return
            self._assign(shard, worker)


@dataclass(frozen=True)
class Plan:
    """What a run will ask of shards, in its order.

    Attributes:
        asked: gates by qualified id that the CPU executor is to measure.
        compared: qualified ids whose reference's outputs a gate needs, wherever it is measured.
        first: qualified ids that need not wait for others, such as canaries.
    """

    asked: dict[str, list[str]]
    compared: frozenset[str]
    first: frozenset[str]

    def rest(self, begun: Iterable[str], released: set[str]) -> Iterator[str]:
        """Shards that can be begun: those of models whose canaries have passed, and first ones."""
        known = set(begun)
        for name in self.asked:
            if name not in known and (name in self.first or name.partition(":")[0] in released):
                yield name


def _settings(timeout: float) -> dict[str, Any]:
    return {"distributed.comm.timeouts.connect": f"{timeout}s"}


def _unfit(told: Introduction | None) -> str:
    """Why a worker takes no part; empty if it does."""
    if told is None:
        return "it is one of Dask's own; start it with: pytest-ane worker"
    here = versions()
    differing = [name for name in here if told.versions.get(name) != here[name]]
    if not differing:
        return ""
    name = differing[0]
    return (
        f"its {name} is {told.versions.get(name, 'unknown')}, and here it is {here[name]}; install "
        "the same there"
    )


def _many_lost(name: str, worker: _Worker) -> UnprovenError:
    return UnprovenError(
        f"{name}: {_MOST_LOST + 1} workers were lost that had it, the last on "
        f"{worker.told.label} ({worker.address}); see there why its process ended, such as for "
        "want of memory"
    )


def _first(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
