"""Workers and futures without Dask: whatever happens to them, a test decides, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from pytest_ane.backends.coreml import Machine
from pytest_ane.cluster.assignment import Plan
from pytest_ane.cluster.client import Cluster
from pytest_ane.cluster.job import Inputs, Job
from pytest_ane.cluster.tasks import Answer, Facts, Introduction, Measured, pickled
from pytest_ane.cluster.workers import Worker
from pytest_ane.gates.base import GateTest
from pytest_ane.mlprogram.errors import AneError

MOST_ROUNDS = 2000
"""Rounds of waiting after which a test has no end."""
FILES = {"weights": "a" * 64}


@dataclass(eq=False)
class FakeFuture:
    """What was submitted, and what became of it."""

    task: str
    args: tuple[Any, ...]
    worker: Worker
    status: str = "pending"
    value: Any = None

    def done(self) -> bool:
        return self.status != "pending"

    def finish(self, value: Any) -> None:
        self.status, self.value = "finished", value

    def fail(self, error: Exception) -> None:
        self.status, self.value = "error", error

    def result(self, timeout: float | None = None) -> Any:
        if self.status == "error":
            raise self.value
        return self.value

    def exception(self) -> Any:
        return self.value


def worker(address: str, machine: Machine | None = None) -> Worker:
    told = Introduction(address, {}, Inputs({}, {}), frozenset(), machine)
    return Worker(address, told, 10**9)


@dataclass
class FakeWorkers:
    """Those that take part; `step` is what happens in each round of waiting.

    Who looks at them is due in `every` such round.
    """

    names: Sequence[str]
    step: Callable[[FakeWorkers], None]
    url: str = "tcp://x"
    timeout: float = 0.1
    rounds: int = 0
    every: int = 7
    submitted: list[FakeFuture] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    gone: list[Worker] = field(default_factory=list)
    can: Callable[[str], bool] = lambda shard: True

    def __post_init__(self) -> None:
        self.known = {name: worker(name) for name in self.names}

    def __iter__(self) -> Iterator[Worker]:
        return iter([*self.known.values()])

    def __contains__(self, worker: Worker) -> bool:
        return self.known.get(worker.address) is worker

    def has(self, worker: Worker, name: str) -> bool:
        return worker.told.builds

    def has_same(self, worker: Worker, name: str) -> bool:
        return True

    def can_build(self, worker: Worker, shard: Any) -> bool:
        return worker.told.builds and self.can(shard.qualified)

    def submit(self, task: Any, *args: Any, at: Sequence[Worker]) -> FakeFuture:
        self.submitted.append(FakeFuture(task.__name__, args, at[0]))
        return self.submitted[-1]

    def wait(self) -> None:
        self.rounds += 1
        assert self.rounds < MOST_ROUNDS, f"no end; said {self.said[-2:]}"
        time.sleep(0.001)
        self.step(self)

    def is_due(self) -> bool:
        """Several things can happen between two looks."""
        self.wait()
        return self.rounds % self.every == 0

    def refresh(self) -> list[Worker]:
        gone, self.gone = self.gone, []
        return gone

    def lose(self, name: str, instead: str = "") -> None:
        """A worker's process ends; its futures are what Dask makes of them."""
        self.gone.append(self.known.pop(name))
        if instead:
            self.known[instead] = worker(instead)

    def leave_out(self, address: str, why: str) -> Worker | None:
        left = self.known.pop(address, None)
        if left is not None:
            self.said.append(why)
        return left

    def require_scheduler(self) -> None:
        pass

    def nobody(self, what: str, name: str) -> str:
        return what

    def cancel(self, futures: Any) -> None:
        for future in futures:
            if future.status == "pending":
                future.status = "cancelled"

    def asked(self, task: str) -> list[Any]:
        """The first argument of all tasks of a kind: shards, models or gates."""
        return [future.args[0] for future in self.submitted if future.task == task]


def shard(name: str, prompts: bool = False) -> Any:
    return SimpleNamespace(
        qualified=f"m:{name}",
        id=name,
        model="m",
        arithmetic=("typed",),
        policy=SimpleNamespace(evidence=None),
        probes=SimpleNamespace(of_prompts=prompts),
        artifact=None,
        reference="float32",
    )


def join(
    workers: FakeWorkers,
    shards: Sequence[Any],
    lacking: Callable[[str], list[tuple[str, str]]] = lambda name: [],
) -> Cluster:
    """A cluster that is asked for the compression of all shards."""
    names = [each.qualified for each in shards]
    manifest = SimpleNamespace(models=[SimpleNamespace(name="m", policy=shards[0].policy)])
    job = cast(Job, SimpleNamespace(shards=tuple(shards), manifest=manifest))
    plan = Plan(
        {name: [GateTest("compression", name)] for name in names},
        frozenset(names),
        frozenset(names),
        lambda name, files: lacking(name),
    )
    cache = cast(Any, SimpleNamespace(store=None))
    return Cluster(cast(Any, workers), job, cache, plan, workers.said.append)


def answer(name: str = "m:L00", files: dict[str, str] = FILES, label: str = "one") -> Answer:
    return Answer("measured", {name: Facts(1, files).digest}, {}, (), label)


def do(workers: FakeWorkers, *but: str) -> None:
    """All that is pending is done, but tasks of some kinds."""
    for future in workers.submitted:
        if future.status == "pending" and future.task not in but:
            finish(future)


def measured_as(**answers: Answer | AneError) -> Callable[[FakeWorkers], None]:
    """All that is pending is done, and every shard is measured so."""
    data = {GateTest(gate, "m:L00"): pickled(answer) for gate, answer in answers.items()}

    def step(workers: FakeWorkers) -> None:
        for future in workers.submitted:
            if future.status == "pending" and future.task == "measure_shard":
                future.finish(Measured(Facts(1, FILES, (), "one"), data))
        do(workers)

    return step


def finish(future: FakeFuture) -> None:
    name = future.worker.address
    failed = [a for a in future.args if isinstance(a, FakeFuture) and a.status == "error"]
    if failed:
        future.fail(failed[0].value)
    elif future.task == "measure_shard":
        subject, tests, *_ = future.args
        answers = {test: pickled(answer(subject, label=name)) for test in tests}
        future.finish(Measured(Facts(1, FILES, (), name), answers))
    elif future.task in ("measure", "measure_on_device"):
        future.finish(answer(future.args[0].subject, label=name))
    else:
        future.finish(future.task)
