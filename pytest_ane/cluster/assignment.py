"""Which worker has which shard.

A worker has few shards at a time, and gets another when one is done. What a lost worker held is
another's, up to three times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distributed import KilledWorker

from pytest_ane.cluster import tasks
from pytest_ane.cluster.tasks import Facts, FullDiskError
from pytest_ane.cluster.workers import TaskFuture, Worker, Workers
from pytest_ane.gates.base import GateTest
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import UnprovenError

AT_ONCE = 2
"""Tasks that a worker has: shards to build, or measurements on a device. One is at work."""
MOST_LOST = 3
"""Workers that may be lost with a task before it is given up."""
MEASURED = "measured"
"""Among the results that are pending of a shard: what its gates will ask."""
_BROKEN = ("error", "cancelled", "lost")


@dataclass(frozen=True)
class Plan:
    """What a run will ask of shards, by qualified id and in its order.

    Attributes:
        asked: tests that the CPU executor is to measure.
        compared: those whose reference's outputs a gate needs, wherever it is measured.
        first: those that need not wait for others, such as canaries.
        lacking: gives gates and systems whose measurement on a device no recorded evidence tells,
            of a shard and the digests of its package's files.
    """

    asked: dict[str, list[GateTest]]
    compared: frozenset[str]
    first: frozenset[str]
    lacking: Callable[[str, Mapping[str, str]], Sequence[tuple[str, str]]]


class Capture(NamedTuple):
    """A model's hidden states, recorded at any of some workers."""

    workers: list[Worker]
    future: TaskFuture


@dataclass(eq=False)
class Work:
    """A shard at a worker: its package, facts of it, and measurements.

    Attributes:
        capture: hidden states that its reference needs.
        pending: results that nobody has taken, by what was asked.
        facts: of the package, as soon as they are there.
        answers: to what its gates will ask, as soon as they are there and until they are taken.
    """

    worker: Worker
    capture: Capture | None
    built: TaskFuture
    pending: dict[str, TaskFuture] = field(default_factory=dict)
    facts: Facts | None = None
    answers: dict[GateTest, bytes] = field(default_factory=dict)

    @property
    def futures(self) -> tuple[TaskFuture, ...]:
        """All that is held of it."""
        return self.built, *self.pending.values()


class Assignment:
    """The shards that workers have: `works` by qualified id, without those that were lost."""

    def __init__(self, workers: Workers, shards: Iterable[Shard], plan: Plan) -> None:
        self._workers, self._plan = workers, plan
        self._shards = {shard.qualified: shard for shard in shards}
        self.works: dict[str, Work] = {}
        self._open: dict[str, Work] = {}
        self._taken: set[str] = set()
        self._captures: dict[str, Capture] = {}
        self._given_up: dict[str, UnprovenError] = {}
        self._lost: Counter[str] = Counter()
        self._released: set[str] = set()

    @property
    def at_work(self) -> list[str]:
        """Shards of which something is still to be done."""
        return [*self._open]

    @property
    def done(self) -> int:
        """How many shards nothing is to be done of any more."""
        return len(self._taken | (self.works.keys() - self._open.keys()))

    @property
    def futures(self) -> list[TaskFuture]:
        """Results that a run still holds at its workers, and what it has asked besides."""
        of_works = [future for work in self.works.values() for future in work.futures]
        return [*of_works, *(capture.future for capture in self._captures.values())]

    def holds(self, works: Mapping[str, Work]) -> bool:
        """Whether none of these was lost with its worker, or begun again, since."""
        return all(self.works.get(name) is work for name, work in works.items())

    def release(self, shard: Shard) -> None:
        """Note that a shard's canaries have passed: other shards of its model may be begun."""
        if shard.qualified not in self._plan.first:
            self._released.add(shard.model)

    def give(self, shard: Shard) -> Work | None:
        """A shard's work, given to a worker that has room if need be; None if none has."""
        name = shard.qualified
        if name in self.works:
            return self.works[name]
        if name in self._given_up:
            raise self._given_up[name]
        worker = self._free(shard)
        return None if worker is None else self._assign(shard, worker)

    def ask_all(self, shard: Shard, work: Work) -> TaskFuture:
        """What a run's gates will ask of a shard; asked if it is not yet."""
        name = shard.qualified
        return self.ask(work, MEASURED, tasks.measure_shard, name, self._plan.asked.get(name, ()))

    def ask(self, work: Work, key: str, task: Callable[..., Any], *args: Any) -> TaskFuture:
        """What a task tells of a shard's package, its last argument; asked if it is not yet."""
        if key not in work.pending:
            work.pending[key] = self._workers.submit(task, *args, work.built, at=[work.worker])
        return work.pending[key]

    def busy(self, worker: Worker) -> int:
        """Of how many shards something is still to be done at a worker."""
        return sum(work.worker is worker for work in self._open.values())

    def refresh(self, gone: Iterable[Worker]) -> None:
        """Take note of what is done and of workers that are gone; give others more to do."""
        for name, work in [*self._open.items()]:
            if all(future.done() for future in work.futures):
                del self._open[name]
        for worker in gone:
            for name in self._of(worker):  # What it had at work may be why it is gone.
                self._lost[name] += name in self._open
                if self._lost[name] > MOST_LOST:
                    self._given_up[name] = many_lost(name, str(worker))
                self._drop(name)
        for model in [*self._captures]:
            self._mend(model)
        self._fill()

    def leave_out(self, error: FullDiskError) -> None:
        """Ask a worker nothing more whose disk is full."""
        if (worker := self._workers.leave_out(error.address, str(error))) is not None:
            for name in self._of(worker):
                self._drop(name)

    def discard(self, works: Mapping[str, Work], worker: Worker) -> None:
        """Begin again with works of which a task failed at a worker, such as for want of it."""
        for name, work in works.items():
            broken = work.worker is worker or work.built.status in _BROKEN
            if broken and self.works.get(name) is work:
                self._drop(name)

    def _free(self, shard: Shard) -> Worker | None:
        name = shard.qualified
        free = (
            worker for worker in self._workers
            if self._workers.can_build(worker, shard) and self._has_room(worker, name)
        )  # fmt: skip
        return min(free, key=lambda w: (name not in w.told.built, self.busy(w)), default=None)

    def _has_room(self, worker: Worker, name: str) -> bool:
        busy = self.busy(worker)
        if self._lost[name]:
            return not busy
        alone = any(self._lost[n] for n, work in self._open.items() if work.worker is worker)
        return busy < AT_ONCE and not alone

    def _assign(self, shard: Shard, worker: Worker) -> Work:
        name = shard.qualified
        cases = name in self._plan.compared and shard.reference == "float32"
        capture = self._capture(shard.model) if cases and shard.probes.of_prompts else None
        needs = [capture.future] if capture else []
        built = self._workers.submit(tasks.build, name, cases, *needs, at=[worker])
        work = self.works[name] = self._open[name] = Work(worker, capture, built)
        self.ask_all(shard, work)
        return work

    def _capture(self, model: str) -> Capture:
        self._mend(model)
        if model not in self._captures:
            able = [worker for worker in self._workers if self._workers.has(worker, model)]
            future = self._workers.submit(tasks.capture, model, at=able)
            self._captures[model] = Capture(able, future)
        return self._captures[model]

    def _mend(self, model: str) -> None:
        """Record lost hidden states again; give up models that lose worker after worker."""
        if (capture := self._captures.get(model)) is None:
            return
        status = capture.future.status
        there = any(worker in self._workers for worker in capture.workers)
        if status == "finished" or (status == "pending" and there):
            return
        error = capture.future.exception() if status == "error" else None
        if not isinstance(error, FullDiskError | KilledWorker | None):
            return  # Whatever is built upon it fails likewise, and says so.
        del self._captures[model]
        for name, work in [*self.works.items()]:
            if work.capture is capture and work.built.status != "finished":
                self._drop(name)
        if isinstance(error, FullDiskError):
            self.leave_out(error)
        elif isinstance(error, KilledWorker):
            why = many_lost(model, error.last_worker.address)
            self._given_up |= {n: why for n, shard in self._shards.items() if shard.model == model}

    def _of(self, worker: Worker) -> list[str]:
        return [name for name, work in self.works.items() if work.worker is worker]

    def _drop(self, name: str) -> None:
        work = self.works.pop(name)
        self._open.pop(name, None)
        if work.facts is not None and not work.pending and not work.answers:
            self._taken.add(name)
        self._workers.cancel(work.futures)

    def _fill(self) -> None:
        """Begin with first shards, and with others of models whose canaries have passed."""
        begun = self.works.keys() | self._given_up.keys() | self._taken
        for name in self._plan.asked:
            shard = self._shards[name]
            if name in begun or not (name in self._plan.first or shard.model in self._released):
                continue
            if not any(self.busy(w) < AT_ONCE for w in self._workers if w.told.builds):
                return
            if (worker := self._free(shard)) is not None:
                self._assign(shard, worker)


def many_lost(name: str, last: str) -> UnprovenError:
    """Of a shard or model with which workers were lost, the last of them with its address."""
    return UnprovenError(
        f"{name}: {MOST_LOST + 1} workers were lost that had it, the last on {last}; see there "
        "why its process ended, such as for want of memory"
    )
