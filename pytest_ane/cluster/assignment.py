"""Which worker has which shard.

A worker has few shards at a time, and gets another when one is done. What a lost worker held is
another's, up to three times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ane.cluster import tasks
from pytest_ane.cluster.tasks import Facts
from pytest_ane.cluster.workers import TaskFuture, Worker, Workers
from pytest_ane.core.errors import UnprovenError
from pytest_ane.manifest import Shard

AT_ONCE = 2
"""Tasks that a worker has: shards to build, or measurements on a device. One is at work."""
MOST_LOST = 3
"""Workers that may be lost with a task before it is given up."""
FACTS = "facts"
"""Among the results that are pending of a shard: what is known of its package."""


@dataclass(frozen=True)
class Plan:
    """What a run will ask of shards, in its order.

    Attributes:
        asked: gates by qualified id that the CPU executor is to measure.
        compared: qualified ids whose reference's outputs a gate needs, wherever it is measured.
        first: qualified ids that need not wait for others, such as canaries.
        lacking: gives gates and systems, of a shard that is built, whose measurement on a device
            no recorded evidence tells.
    """

    asked: dict[str, list[str]]
    compared: frozenset[str]
    first: frozenset[str]
    lacking: Callable[[str], Sequence[tuple[str, str]]]

    def rest(self, begun: Iterable[str], released: set[str]) -> Iterator[str]:
        """Shards that can be begun: those of models whose canaries have passed, and first ones."""
        known = set(begun)
        for name in self.asked:
            if name not in known and (name in self.first or name.partition(":")[0] in released):
                yield name


@dataclass(eq=False)
class Work:
    """A shard at a worker: its package, facts of it, and measurements.

    Attributes:
        worker: the worker.
        capture: hidden states that its reference needs.
        built: the package.
        pending: results that nobody has taken, by gate; and those facts.
        facts: once they are taken.
    """

    worker: Worker
    capture: Capture | None
    built: TaskFuture
    pending: dict[str, TaskFuture] = field(default_factory=dict)
    facts: Facts | None = None

    @property
    def futures(self) -> tuple[TaskFuture, ...]:
        """All that is held of it."""
        return self.built, *self.pending.values()


@dataclass(frozen=True, eq=False)
class Capture:
    """A model's hidden states, recorded at any of some workers."""

    workers: tuple[Worker, ...]
    future: TaskFuture


class Assignment:
    """The shards that workers have.

    Args:
        workers: those that take part.
        shards: of the run.
        plan: what will be asked of them, in its order.
    """

    def __init__(self, workers: Workers, shards: Iterable[Shard], plan: Plan) -> None:
        self._workers, self._plan = workers, plan
        self._shards = {shard.qualified: shard for shard in shards}
        self._works: dict[str, Work] = {}
        self._open: dict[str, Work] = {}
        self._captures: dict[str, Capture] = {}
        self._given_up: dict[str, UnprovenError] = {}
        self._lost: Counter[str] = Counter()
        self._released: set[str] = set()

    def __getitem__(self, name: str) -> Work:
        return self._works[name]

    def __len__(self) -> int:
        return len(self._works)

    def items(self) -> list[tuple[str, Work]]:
        """Shards and their works, as they are now."""
        return [*self._works.items()]

    def holds(self, name: str, work: Work) -> bool:
        """Whether a shard's work is still there."""
        return self._works.get(name) is work

    @property
    def at_work(self) -> list[str]:
        """Shards of which something is still to be done."""
        return [*self._open]

    @property
    def futures(self) -> list[TaskFuture]:
        """All that is held."""
        of_works = [future for work in self._works.values() for future in work.futures]
        return [*of_works, *(capture.future for capture in self._captures.values())]

    def release(self, shard: Shard) -> None:
        """Note that a shard's canaries have passed: other shards of its model may be begun."""
        if shard.qualified not in self._plan.first:
            self._released.add(shard.model)

    def give(self, shard: Shard, *, late: bool = False) -> Work | None:
        """A shard's work, given to a worker that has room if need be; None if none has.

        Args:
            shard: to build.
            late: whether no worker that could build it is waited for any more.

        Raises:
            UnprovenError: it was given up, or no worker can build it.
        """
        name = shard.qualified
        if name in self._works:
            return self._works[name]
        if name in self._given_up:
            raise self._given_up[name]
        if (worker := self._free(shard)) is not None:
            return self._assign(shard, worker)
        if late and not any(self._workers.can_build(worker, shard) for worker in self._workers):
            self._given_up[name] = UnprovenError(
                self._workers.nobody(f"{name}: no worker can build it at", name)
            )
        return None

    def submit(self, work: Work, task: Callable[..., Any], *args: Any) -> TaskFuture:
        """Let a task be done where a shard is."""
        return self._workers.submit(task, *args, at=[work.worker])

    def measuring(self, work: Work, gate: str, name: str) -> TaskFuture:
        """A gate's measurement of a shard, asked for if need be."""
        if gate not in work.pending:
            work.pending[gate] = self.submit(work, tasks.measure, gate, name, False, work.built)
        return work.pending[gate]

    def busy(self, worker: Worker) -> int:
        """Of how many shards something is still to be done at a worker."""
        return sum(work.worker is worker for work in self._open.values())

    def look(self, gone: Iterable[Worker]) -> None:
        """Take note of what is done and of workers that are gone; give others more to do."""
        for name, work in [*self._open.items()]:
            if all(future.done() for future in work.futures):
                del self._open[name]
        for worker in gone:
            self._lose(worker)
        self._recapture()
        self._fill()

    def drop_all(self, worker: Worker) -> None:
        """Take all shards from a worker that is asked nothing more."""
        for name in self._of(worker):
            self._drop(name)

    def _free(self, shard: Shard) -> Worker | None:
        """A worker with room for a shard: one that has its package, or least to do."""
        name = shard.qualified
        free = (
            worker for worker in self._workers
            if self._workers.can_build(worker, shard) and self._has_room(worker, name)
        )  # fmt: skip
        return min(free, key=lambda w: (name not in w.told.built, self.busy(w)), default=None)

    def _has_room(self, worker: Worker, name: str) -> bool:
        """Whether a worker takes a shard; one with which a worker was lost has it for itself."""
        busy = self.busy(worker)
        if self._lost[name]:
            return not busy
        alone = any(self._lost[n] for n, work in self._open.items() if work.worker is worker)
        return busy < AT_ONCE and not alone

    def _assign(self, shard: Shard, worker: Worker) -> Work:
        """Give a shard to a worker, with all that will be asked of it."""
        name = shard.qualified
        cases = name in self._plan.compared
        capture = self._capture(shard.model) if cases and shard.probes.of_prompts else None
        needs = [capture.future] if capture else []
        built = self._workers.submit(tasks.build, name, cases, *needs, at=[worker])
        work = self._works[name] = self._open[name] = Work(worker, capture, built)
        work.pending[FACTS] = self.submit(work, tasks.look, name, built)
        for gate in self._plan.asked.get(name, ()):
            self.measuring(work, gate, name)
        return work

    def _capture(self, model: str) -> Capture:
        if model not in self._captures:
            able = [worker for worker in self._workers if self._workers.has(worker, model)]
            future = self._workers.submit(tasks.capture, model, at=able)
            self._captures[model] = Capture(tuple(able), future)
        return self._captures[model]

    def _lose(self, worker: Worker) -> None:
        """Forget what a worker had that is gone; what it had at work may be the cause."""
        for name in self._of(worker):
            self._lost[name] += name in self._open
            if self._lost[name] > MOST_LOST:
                self._given_up[name] = many_lost(name, worker)
            self._drop(name)

    def _of(self, worker: Worker) -> list[str]:
        return [name for name, work in self._works.items() if work.worker is worker]

    def _drop(self, name: str) -> None:
        """Take a shard from its worker; what is not begun there is cancelled."""
        work = self._works.pop(name)
        self._open.pop(name, None)
        self._workers.cancel(work.futures)

    def _recapture(self) -> None:
        """Begin again with hidden states that were lost with all workers that might have them."""
        for model, capture in [*self._captures.items()]:
            there = any(worker in self._workers for worker in capture.workers)
            if there or capture.future.status == "finished":
                continue
            del self._captures[model]
            waiting = [n for n, w in self._works.items() if w.capture is capture]
            for name in waiting:
                if not self._works[name].built.done():
                    self._drop(name)

    def _fill(self) -> None:
        """Give the next shards to workers that have room; those whose canaries passed."""
        for name in self._plan.rest(self._works.keys() | self._given_up.keys(), self._released):
            shard = self._shards[name]
            if (worker := self._free(shard)) is None:
                return
            self._assign(shard, worker)


def many_lost(name: str, worker: Worker) -> UnprovenError:
    """A shard or model with which workers were lost; the last was this one."""
    return UnprovenError(
        f"{name}: {MOST_LOST + 1} workers were lost that had it, the last on "
        f"{worker.told.label} ({worker.address}); see there why its process ended, such as for "
        "want of memory"
    )
