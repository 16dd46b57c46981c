"""What a run asks of a cluster's workers, and which of them does it.

Each shard is one worker's: it is built, compared and measured there, so that nothing has to travel
but what a Neural Engine or a whole stack needs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from distributed import KilledWorker

from pytest_ane.analysis.blame import Blame
from pytest_ane.build import Artifact, BuildRecord, Cache
from pytest_ane.cluster import tasks
from pytest_ane.cluster.assignment import (
    AT_ONCE,
    FACTS,
    MOST_LOST,
    Assignment,
    Plan,
    Work,
    many_lost,
)
from pytest_ane.cluster.job import Job
from pytest_ane.cluster.parcel import Parcel
from pytest_ane.cluster.tasks import Answer, Facts, FullDiskError
from pytest_ane.cluster.workers import SMALL, TaskFuture, Worker, Workers
from pytest_ane.core.errors import AneError, BuildError, UnprovenError
from pytest_ane.gates import GATES
from pytest_ane.manifest import Shard

_LARGE = 600
"""Seconds that a package may take to arrive from a worker that answers."""

_Question: TypeAlias = tuple[str, str, str | None]
"""A gate, a subject, and a system whose Neural Engine is asked; None for the CPU executor."""


@dataclass(frozen=True, eq=False)
class _Measurement:
    """A measurement at a worker, of packages that others have built."""

    worker: Worker
    works: Mapping[str, Work]
    future: TaskFuture


class RemoteArtifact(Artifact):
    """A package at a worker; it is fetched when more is asked than its digest and size.

    Args:
        facts: what is known of it; None where it was lost with its workers.
        fetch: puts the package into this machine's cache.
    """

    def __init__(self, facts: Facts | None, fetch: Callable[[], Artifact]) -> None:
        vars(self).update(
            _files=facts.files if facts else {},
            digest=facts.digest if facts else "",
            size=facts.size if facts else 0,
            _fetch=fetch,
        )

    @property
    def files(self) -> Mapping[str, str]:
        """As the worker has them."""
        files: Mapping[str, str] = vars(self)["_files"]
        return files

    @cached_property
    def _fetched(self) -> Artifact:
        artifact: Artifact = vars(self)["_fetch"]()
        return artifact

    @cached_property
    def path(self) -> Path:
        """In this machine's cache; `UnprovenError` where the worker is lost."""
        return self._fetched.path

    @cached_property
    def record(self) -> BuildRecord | None:
        """Of its build, fetched with it."""
        return self._fetched.record


class _LostError(Exception):
    """A worker is gone; who waited for it turns to another."""


class Cluster:
    """Shards at workers, and their measurements.

    Args:
        workers: those that have joined.
        job: the run.
        cache: this machine's, for packages that are fetched.
        plan: what will be asked, in its order.
        say: takes a sentence for the person.
        show: takes the shards that are at work, and how many are done, several times a second.
    """

    def __init__(
        self,
        workers: Workers,
        job: Job,
        cache: Cache,
        plan: Plan,
        say: Callable[[str], None],
        show: Callable[[Sequence[str], int], None] = lambda shards, done: None,
    ) -> None:
        self._workers, self._cache, self._plan = workers, cache, plan
        self._say, self._show = say, show
        self._shards = {shard.qualified: shard for shard in job.shards}
        self._policies = {name: shard.policy for name, shard in self._shards.items()}
        self._policies |= {model.name: model.policy for model in job.manifest.models}
        self._assigned = Assignment(workers, job.shards, plan)
        self._digests: dict[str, tuple[str, str]] = {}
        self._lacking: deque[_Question] = deque()
        self._ahead: dict[_Question, _Measurement] = {}
        self._begun_questions: set[_Question] = set()
        self._seen: set[str] = set()
        self._has_waited = self._is_asking = False
        self._look(now=True)

    def artifact(self, shard: Shard) -> RemoteArtifact:
        """A shard's package, which a worker has built or looked up.

        One that was lost with its workers has no digest; gates are told when they ask of it.

        Raises:
            AneError: it cannot be built.
        """
        self._assigned.release(shard)  # Whoever asks has asked its canaries.
        facts = None
        with suppress(UnprovenError):
            facts = self._facts(shard)
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
            self._shards[subject], lambda work: self._assigned.measuring(work, gate, subject)
        )
        self._assigned[subject].pending.pop(gate, None)
        return answer

    def measure_on_device(self, gate: str, subject: str, system: str) -> Answer:
        """A gate's measurement by Core ML, on a worker with a Neural Engine.

        Args:
            gate: its name.
            subject: a shard's qualified id, or a model's name.
            system: one of the policy's; empty where any will do.

        Raises:
            UnprovenError: no such worker is there, or it was lost.
            AneError: it cannot be measured.
        """
        return self._on_one(gate, subject, system)

    def beside(self, gate: str, subject: str, recorded: Any) -> Any:
        """A recorded measurement with what a worker can tell besides, as of `Gate.beside`."""
        return self._asked(
            self._shards[subject],
            lambda work: self._assigned.submit(
                work, tasks.beside, gate, subject, recorded, work.built
            ),
        )

    def explain(self, shard: Shard) -> Blame:
        """The weights and operations that a shard's error comes from."""
        blame: Blame = self._asked(
            shard,
            lambda work: self._assigned.submit(work, tasks.explain, shard.qualified, work.built),
        )
        return blame

    def close(self) -> None:
        """Cancel what is not begun, and leave; workers finish what they have begun."""
        ahead = [measurement.future for measurement in self._ahead.values()]
        self._workers.cancel([*self._assigned.futures, *ahead])
        self._workers.close()

    # Shards at workers.

    def _asked(self, shard: Shard, future_of: Callable[[Work], TaskFuture]) -> Any:
        """What a future of a shard gives; from another worker, where one is lost."""
        while True:
            work = self._begun(shard)
            try:
                return self._given(future_of(work), {shard.qualified: work})
            except _LostError:
                continue
            except FullDiskError as error:
                self._leave_out(error)

    def _facts(self, shard: Shard) -> Facts:
        """What is known of a shard's package.

        Raises:
            BuildError: another worker had built it before, with other bytes.
        """
        name, work = shard.qualified, self._begun(shard)
        if work.facts is not None:
            return work.facts
        facts: Facts = self._asked(shard, lambda work: work.pending[FACTS])
        for note in facts.notes:
            self._say(f"{facts.label}: {note}")
        digest, label = self._digests.setdefault(name, (facts.digest, facts.label))
        if digest != facts.digest:
            raise BuildError(
                f"{name}: {facts.label} built other bytes ({facts.digest[:12]}) than {label} "
                f"before ({digest[:12]}), so nothing is compared; see that both have the same "
                "libraries, or give the shard to one of them."
            )
        work = self._assigned[name]
        work.facts = facts
        del work.pending[FACTS]
        return facts

    def _begun(self, shard: Shard) -> Work:
        """A shard's work, as soon as a worker has room for it.

        Raises:
            UnprovenError: it was given up, or no worker can build it.
        """
        end = time.monotonic() + self._workers.timeout
        while (work := self._assigned.give(shard, late=time.monotonic() > end)) is None:
            self._workers.wait()
            self._look(now=True)
        return work

    def _leave_out(self, error: FullDiskError) -> None:
        """Ask a worker nothing more whose disk is full."""
        if (worker := self._workers.leave_out(error.address, str(error))) is not None:
            self._assigned.drop_all(worker)

    def _fetched(self, shard: Shard) -> Artifact:
        """A shard's package in this machine's cache."""
        if shard.artifact is not None:
            return Artifact(shard.artifact)
        parcel: Parcel = self._asked(shard, lambda work: work.built)
        parcel.settle(self._cache)
        key = next(name.key for name in parcel.names if name.kind == "artifacts")
        return Artifact.of_entry(self._cache.path("artifacts", key))

    # Whole models, and Neural Engines.

    def _on_one(self, gate: str, subject: str, system: str | None = None) -> Answer:
        """Measure at one worker what others have built; with a system at a Neural Engine."""
        lost, question = 0, (gate, subject, system)
        while True:
            measurement = self._ahead.pop(question, None) or self._begin(question)
            worker = measurement.worker
            try:
                answer: Answer = self._given(measurement.future, measurement.works, worker)
                return answer
            except _LostError:
                lost += worker not in self._workers
                if lost > MOST_LOST:
                    raise many_lost(subject, worker) from None
            except FullDiskError as error:
                self._leave_out(error)

    def _begin(self, question: _Question, worker: Worker | None = None) -> _Measurement:
        gate, subject, system = question
        self._begun_questions.add(question)
        shards = [self._shards[subject]] if subject in self._shards else self._of_model(subject)
        works = self._built(shards)
        if worker is None:
            worker = self._stack_worker(subject) if system is None else self._device(question)
        built = [work.built for work in works.values()]
        on_device = system is not None
        future = self._workers.submit(tasks.measure, gate, subject, on_device, *built, at=[worker])
        return _Measurement(worker, works, future)

    def _built(self, shards: Sequence[Shard]) -> dict[str, Work]:
        """Shards that are all built at the same time; workers may be lost meanwhile."""
        while True:
            for shard in shards:
                self._facts(shard)
            works = dict(self._assigned.items())
            if all(shard.qualified in works for shard in shards):
                return {shard.qualified: works[shard.qualified] for shard in shards}

    def _of_model(self, name: str) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.model == name]

    def _stack_worker(self, model: str) -> Worker:
        """Where a whole model is measured: at the worker with its weights and most memory."""
        able = [worker for worker in self._workers if worker.told.builds]
        return max(
            able, key=lambda w: (self._workers.has(w, model), w.memory, -self._assigned.busy(w))
        )

    def _device(self, question: _Question) -> Worker:
        """The worker with a Neural Engine that has least to do; waited for once in a run."""
        end = time.monotonic() + (0 if self._has_waited else self._workers.timeout)
        while True:
            able = [worker for worker in self._workers if self._will_do(worker, question)]
            if able:
                return min(able, key=self._queue)
            if time.monotonic() > end:
                self._has_waited = True
                url = self._workers.url
                raise UnprovenError(
                    f"no worker with a Neural Engine that would do is connected to {url}; on a "
                    f"Mac, run: pytest-ane worker {url}"
                )
            self._workers.wait()
            self._look(now=True)

    def _will_do(self, worker: Worker, question: _Question) -> bool:
        """Whether a worker has a Neural Engine, under the system that is asked for."""
        gate, subject, system = question
        policy, machine = self._policies[subject].evidence_for(gate), worker.told.machine
        return machine is not None and (not system or policy.system_of(machine.os) == system)

    def _queue(self, worker: Worker) -> int:
        """How many measurements asked ahead a worker with a Neural Engine still has to make."""
        return sum(
            measurement.worker is worker and not measurement.future.done()
            for measurement in self._ahead.values()
        )

    def _ask_ahead(self) -> None:
        """Let Neural Engines go on with what tests will ask of shards that are built."""
        if self._is_asking:  # What evidence there is cannot be seen without another look.
            return
        self._is_asking = True
        try:
            for worker in self._workers:
                if not worker.told.builds and self._queue(worker) < AT_ONCE:
                    self._ask_next(worker)
        finally:
            self._is_asking = False

    def _ask_next(self, worker: Worker) -> None:
        if len(self._lacking) < AT_ONCE:
            self._see()
        if question := next((q for q in self._lacking if self._will_do(worker, q)), None):
            self._lacking.remove(question)
            if question not in self._begun_questions:
                with suppress(AneError):  # Its own test will say so.
                    self._ahead[question] = self._begin(question, worker)

    def _see(self) -> None:
        """Find out which measurements on a device the next shards lack that are built."""
        for name, work in self._assigned.items():
            if name in self._seen or not (work.facts or work.pending[FACTS].status == "finished"):
                continue
            self._seen.add(name)
            with suppress(AneError):
                self._lacking += [(gate, name, system) for gate, system in self._plan.lacking(name)]
            if len(self._lacking) >= AT_ONCE:
                return

    # Futures, and who is there.

    def _given(
        self, future: TaskFuture, works: Mapping[str, Work], worker: Worker | None = None
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
        patience = SMALL
        while True:
            self._look()
            if any(not self._assigned.holds(name, work) for name, work in works.items()):
                raise _LostError
            if worker is not None and worker not in self._workers:
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
                self._workers.require_scheduler()
                raise _LostError
            else:
                self._workers.wait()

    def _look(self, *, now: bool = False) -> None:
        """See who came and who went, and give workers that have little to do more."""
        if not now and not self._workers.is_due():
            return
        self._assigned.look(self._workers.look())
        self._ask_ahead()
        at_work = self._assigned.at_work
        self._show(at_work, len(self._assigned) - len(at_work))
