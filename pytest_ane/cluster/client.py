"""What a run asks of a cluster's workers, and which of them does it.

Each shard is one worker's: it is built, compared and measured there, so that nothing has to travel
but what a Neural Engine or a whole stack needs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from distributed import KilledWorker

from pytest_ane.cluster import assignment, tasks
from pytest_ane.cluster.assignment import AT_ONCE, MEASURED, MOST_LOST, Assignment, Plan, Work
from pytest_ane.cluster.job import Job, Parcel
from pytest_ane.cluster.tasks import Answer, Facts, FullDiskError, Measured
from pytest_ane.cluster.workers import SMALL, TaskFuture, Worker, Workers
from pytest_ane.gates.base import GateTest
from pytest_ane.gates.registry import GATES
from pytest_ane.make import Artifact, BuildRecord, Cache
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import AneError, BuildError, UnprovenError
from pytest_ane.tools.blame.analysis import Blame

_LARGE = 600
"""Seconds that a package may take to arrive from a worker that answers."""


class _Question(NamedTuple):
    """A test, and a system whose Neural Engine is asked; None for the CPU executor."""

    test: GateTest
    system: str | None


@dataclass(frozen=True, eq=False)
class _Task:
    worker: Worker
    works: Mapping[str, Work]
    future: TaskFuture


class RemoteArtifact(Artifact):
    """A package at a worker, fetched when more is asked of it; without facts where it was lost."""

    _files: Mapping[str, str]
    _fetched: Callable[[], Artifact]

    def __init__(self, facts: Facts | None, fetch: Callable[[], Artifact]) -> None:
        vars(self).update(
            _files=facts.files if facts else {},
            digest=facts.digest if facts else "",
            size=facts.size if facts else 0,
            _fetched=cache(fetch),
        )

    @property
    def files(self) -> Mapping[str, str]:
        """SHA-256 by relative path, of the package as the worker described it."""
        return self._files

    @cached_property
    def path(self) -> Path:
        """In this machine's cache; `UnprovenError` where the worker is lost."""
        return self._fetched().path

    @cached_property
    def record(self) -> BuildRecord | None:
        """Of its build, fetched with it."""
        return self._fetched().record


class _LostError(Exception):
    """A worker is gone, or the scheduler has forgotten a task."""


class Cluster:
    """Shards at workers, and their measurements.

    Whatever is asked raises `UnprovenError` where no worker is left that could tell, `BuildError`
    where it was made of other bytes than are judged, and what a worker raised.

    Packages are fetched into the cache. `say` takes a sentence for the person, `show` the shards
    that are at work, and how many are done, several times a second.
    """

    def __init__(
        self, workers: Workers, job: Job, cache: Cache, plan: Plan, say: Callable[[str], None],
        show: Callable[[Sequence[str], int], None] = lambda shards, done: None,
    ) -> None:  # fmt: skip
        self._workers, self._cache, self._plan = workers, cache, plan
        self._say, self._show = say, show
        self._shards = {shard.qualified: shard for shard in job.shards}
        self._policies = {name: shard.policy for name, shard in self._shards.items()}
        self._policies |= {model.name: model.policy for model in job.manifest.models}
        self._assigned = Assignment(workers, job.shards, plan)
        self._digests: dict[str, tuple[str, str]] = {}
        self._waited_for: set[str] = set()
        self._lacking: deque[_Question] = deque()
        self._ahead: dict[_Question, _Task] = {}
        self._asked: set[_Question] = set()
        self._seen: set[str] = set()
        self._refresh(now=True)

    def artifact(self, shard: Shard) -> RemoteArtifact:
        """A shard's package at a worker; of one that was lost with its workers no digest."""
        self._assigned.release(shard)  # Whoever asks has asked its canaries.
        facts = None
        with suppress(UnprovenError):
            facts = self._facts(shard)
        return RemoteArtifact(facts, lambda: self._fetched(shard))

    def measure(self, test: GateTest) -> Answer:
        """A gate's measurement of a shard or model, by the CPU executor."""
        if GATES[test.gate].scope == "model":
            return self._on_one(_Question(test, None))
        shard = self._shards[test.subject]
        self._facts(shard)
        if (data := self._assigned.works[test.subject].answers.pop(test, None)) is None:
            return self._checked(self._told(shard, str(test), tasks.measure, test))
        if isinstance(answer := tasks.unpickled(data), AneError):
            raise answer
        return self._checked(answer)

    def measure_on_device(self, gate: str, subject: str, system: str) -> Answer:
        """A gate's measurement on a worker's Neural Engine, of a policy's system or of any."""
        return self._on_one(_Question(GateTest(gate, subject), system))

    def beside(self, gate: str, subject: str, recorded: Any) -> Any:
        """A recorded measurement with what a worker can tell besides, as of `Gate.beside`."""
        key = f"beside {gate}"
        told = self._told(self._shards[subject], key, tasks.beside, gate, subject, recorded)
        self._assigned.works[subject].answers.pop(GateTest(gate, subject), None)  # In its place.
        return told

    def explain(self, shard: Shard) -> Blame:
        """The weights and operations that a shard's error comes from."""
        asked = shard.qualified, shard.arithmetic
        blame: Blame = self._told(shard, f"explain {shard.arithmetic}", tasks.explain, *asked)
        return blame

    def close(self) -> None:
        """Cancel what is not begun, and leave; workers finish what they have begun."""
        self._workers.cancel([*self._assigned.futures, *(t.future for t in self._ahead.values())])
        self._workers.close()

    # Of one shard, where it is.

    def _told(self, shard: Shard, key: str, task: Callable[..., Any], *args: Any) -> Any:
        return self._taken(shard, key, lambda work: self._assigned.ask(work, key, task, *args))

    def _taken(self, shard: Shard, key: str, ask: Callable[[Work], TaskFuture]) -> Any:
        told = self._retried_at(shard, ask)
        self._assigned.works[shard.qualified].pending.pop(key, None)
        return told

    def _retried_at(self, shard: Shard, ask: Callable[[Work], TaskFuture]) -> Any:
        def begin() -> _Task:
            work = self._work_of(shard)
            return _Task(work.worker, {shard.qualified: work}, ask(work))

        return self._retried(shard.qualified, begin)

    def _facts(self, shard: Shard) -> Facts:
        if (known := self._work_of(shard).facts) is not None:
            return known
        measured: Measured = self._taken(shard, MEASURED, partial(self._assigned.ask_all, shard))
        facts = measured.facts
        if self._cache.store is not None:
            self._cache.store.counts.update(measured.stored)
        for note in facts.notes:
            self._say(f"{facts.label}: {note}")
        self._require_same(shard.qualified, facts.digest, facts.label)
        work = self._assigned.works[shard.qualified]
        work.facts, work.answers = facts, dict(measured.answers)
        return facts

    def _checked(self, answer: Answer) -> Answer:
        for name, digest in answer.digests.items():
            self._require_same(name, digest, answer.label)
        return answer

    def _require_same(self, name: str, digest: str, label: str) -> None:
        known, first = self._digests.setdefault(name, (digest, label))
        if digest != known:
            raise BuildError(
                f"{name}: its package on {label} has other bytes ({digest[:12]}) than on {first} "
                f"({known[:12]}), so nothing is compared; see that both have the same files and "
                "libraries, or give the shard to one of them."
            )

    def _work_of(self, shard: Shard) -> Work:
        name, end = shard.qualified, self._end_of_wait("build")
        while (work := self._assigned.give(shard)) is None:
            if any(self._workers.can_build(worker, shard) for worker in self._workers):
                end = self._end_of_wait("build")
            elif time.monotonic() > end:
                self._waited_for.add("build")
                why = self._workers.nobody(f"{name}: no worker can build it at", name)
                raise UnprovenError(why)
            self._workers.wait()
            self._refresh(now=True)
        return work

    def _end_of_wait(self, kind: str) -> float:
        return time.monotonic() + (0 if kind in self._waited_for else self._workers.timeout)

    def _fetched(self, shard: Shard) -> Artifact:
        if shard.artifact is not None:
            return Artifact(shard.artifact)
        parcel: Parcel = self._retried_at(shard, lambda work: work.built)
        parcel.settle(self._cache)
        key = next(name.key for name in parcel.names if name.kind == "artifacts")
        return Artifact.of_entry(self._cache.path("artifacts", key))

    # Of whole models, and on Neural Engines: at one worker, of what others have built.

    def _on_one(self, question: _Question) -> Answer:
        self._asked.add(question)

        def begin() -> _Task:
            if (ahead := self._ahead.pop(question, None)) is not None:
                return ahead
            subject = question.test.subject
            works, on_cpu = self._built(subject), question.system is None
            worker = self._stack_worker(subject) if on_cpu else self._device(question)
            return self._submitted(question, worker, works)

        return self._checked(self._retried(question.test.subject, begin))

    def _submitted(self, question: _Question, worker: Worker, works: Mapping[str, Work]) -> _Task:
        task = tasks.measure if question.system is None else tasks.measure_on_device
        built = [work.built for work in works.values()]
        return _Task(worker, works, self._workers.submit(task, question.test, *built, at=[worker]))

    def _built(self, subject: str) -> dict[str, Work]:
        shards = self._of(subject)
        while True:
            for shard in shards:
                self._facts(shard)
            works = self._assigned.works
            if all(shard.qualified in works for shard in shards):
                return {shard.qualified: works[shard.qualified] for shard in shards}

    def _of(self, subject: str) -> list[Shard]:
        if subject in self._shards:
            return [self._shards[subject]]
        return [shard for shard in self._shards.values() if shard.model == subject]

    def _stack_worker(self, model: str) -> Worker:
        if not (able := [worker for worker in self._workers if worker.told.builds]):
            raise UnprovenError(self._workers.nobody(f"{model}: no worker can run it at", model))
        shards, can_build = self._of(model), self._workers.can_build

        def fitness(worker: Worker) -> tuple[bool, int, int]:
            has_all = all(can_build(worker, shard) for shard in shards)
            return has_all, worker.memory, -self._assigned.busy(worker)

        return max(able, key=fitness)

    def _device(self, question: _Question) -> Worker:
        end = self._end_of_wait("device")
        while True:
            if able := [worker for worker in self._workers if self._will_do(worker, question)]:
                return min(able, key=lambda w: (not self._has_files(w, question), self._queue(w)))
            if time.monotonic() > end:
                self._waited_for.add("device")
                url = self._workers.url
                raise UnprovenError(
                    f"no usable worker with a Neural Engine is connected to {url}; on a Mac, run: "
                    f"pytest-ane worker {url}"
                )
            self._workers.wait()
            self._refresh(now=True)

    def _will_do(self, worker: Worker, question: _Question) -> bool:
        machine, system = worker.told.machine, question.system
        if machine is None or not system:
            return machine is not None
        return self._policies[question.test.subject].evidence.system_of(machine.os) == system

    def _has_files(self, worker: Worker, question: _Question) -> bool:
        shards = self._of(question.test.subject)
        return all(self._workers.has_same(worker, shard.qualified) for shard in shards)

    def _queue(self, worker: Worker) -> int:
        ahead = self._ahead.values()
        return sum(task.worker is worker and not task.future.done() for task in ahead)

    # Ahead of the tests, so that a Neural Engine need not wait for them.

    def _ask_next(self, worker: Worker) -> None:
        if len(self._lacking) < AT_ONCE:
            self._find_lacking()
        for question in self._lacking:
            work = self._assigned.works.get(question.test.subject)
            if question in self._asked or work is None:
                self._lacking.remove(question)
                return
            if self._will_do(worker, question) and self._has_files(worker, question):
                self._lacking.remove(question)
                works = {question.test.subject: work}
                self._ahead[question] = self._submitted(question, worker, works)
                return

    def _find_lacking(self) -> None:
        for name, work in self._assigned.works.items():
            if name in self._seen or (facts := _arrived(work)) is None:
                continue
            self._seen.add(name)
            lacking = self._plan.lacking(name, facts.files)
            self._lacking += [_Question(GateTest(gate, name), system) for gate, system in lacking]
            if len(self._lacking) >= AT_ONCE:
                return

    # Results, and who is there.

    def _retried(self, subject: str, begin: Callable[[], _Task]) -> Any:
        for _ in range(MOST_LOST + 1):
            task = begin()
            try:
                return self._result(task)
            except _LostError:
                failed = assignment.many_lost(subject, str(task.worker))
            except FullDiskError as error:
                failed = UnprovenError(str(error))
                self._assigned.leave_out(error)
            self._assigned.discard(task.works, task.worker)
        raise failed

    def _result(self, task: _Task) -> Any:
        future, patience = task.future, SMALL
        while True:
            self._refresh()
            if not self._assigned.holds(task.works) or task.worker not in self._workers:
                raise _LostError
            if future.status == "finished":
                try:
                    return future.result(timeout=patience)
                except NotYetError:
                    patience = _LARGE
                except (CancelledError, asyncio.CancelledError, OSError):
                    self._workers.require_scheduler()
                    raise _LostError from None
            elif future.status == "error":
                if isinstance(error := future.exception(), KilledWorker):
                    raise _LostError
                if isinstance(error, AneError):
                    raise error
                future.result()  # Raises it with its traceback there.
            elif future.status in ("cancelled", "lost"):
                self._workers.require_scheduler()
                raise _LostError
            else:
                self._workers.wait()

    def _refresh(self, *, now: bool = False) -> None:
        look = now or self._workers.is_due()
        self._assigned.refresh(self._workers.refresh() if look else ())
        if look:
            for worker in self._workers:
                if not worker.told.builds and self._queue(worker) < AT_ONCE:
                    self._ask_next(worker)
            self._show(self._assigned.at_work, self._assigned.done)


def _arrived(work: Work) -> Facts | None:
    if work.facts is None and work.pending[MEASURED].status == "finished":
        with suppress(Exception):  # Whoever waits for them is told.
            measured: Measured = work.pending[MEASURED].result(timeout=SMALL)
            return measured.facts
    return work.facts
