"""What a run makes of workers and tasks that fail: it ends, and asks nobody twice for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from distributed import KilledWorker

from pytest_ane.backends.coreml import Machine
from pytest_ane.cluster.client import Cluster
from pytest_ane.cluster.tasks import FullDiskError
from pytest_ane.gates.base import GateTest
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import BuildError, UnprovenError
from tests.cluster.fakes import FakeWorkers, answer, do, finish, join, measured_as, shard
from tests.cluster.fakes import worker as worker_at

MAC = cast(Machine, SimpleNamespace(os="macOS 26.1"))


def judge(cluster: Cluster, shards: Iterable[Shard]) -> None:
    """Ask for packages, and for a measurement of each."""
    for each in shards:
        assert len(cluster.artifact(each).digest) == 64
        assert cluster.measure(GateTest("compression", each.qualified)).measurement == "measured"


def failing(
    error: Exception, tasks: tuple[str, ...], at: str = ""
) -> Callable[[FakeWorkers], None]:
    """Each task ends at once, some with an error, at one worker or at all."""

    def step(now: FakeWorkers) -> None:
        for future in now.submitted:
            if future.status == "pending":
                wrong = future.task in tasks and at in ("", future.worker.address)
                future.fail(error) if wrong else finish(future)

    return step


def many(count: int, prompts: bool = False) -> list[Shard]:
    return [shard(f"L{i:02}", prompts) for i in range(count)]


def test_what_is_done_is_taken_once() -> None:
    workers, shards = FakeWorkers(["one", "two"], do), many(6)
    judge(join(workers, shards), shards)
    assert Counter(workers.asked("build")) == {each.qualified: 1 for each in shards}
    assert len(workers.asked("measure_shard")) == 6
    assert not workers.asked("measure")


def test_a_worker_that_has_done_a_shard_gets_another_at_once() -> None:
    """Not at the next look at who is there, until when it would have nothing to do."""
    workers, shards = FakeWorkers(["one"], do, every=10**9), many(4)
    cluster = join(workers, shards)
    for each in shards[:2]:
        cluster.artifact(each)
    assert "m:L02" in workers.asked("build")


def test_a_worker_that_is_lost() -> None:
    """What it had at work is another's; what was taken is not done again."""
    workers, shards = FakeWorkers(["one", "two"], do), many(8)
    cluster = join(workers, shards)
    judge(cluster, shards[:4])
    taken = {each.qualified for each in shards[:4]}
    workers.lose("one")
    judge(cluster, shards[4:])
    counts = Counter(workers.asked("build"))
    assert {name for name, count in counts.items() if count > 1}.isdisjoint(taken)


def test_what_evidence_told_is_not_done_again() -> None:
    """A shard that is judged by it, and whose worker is lost then."""
    workers, shards = FakeWorkers(["one", "two"], do), many(8)
    cluster = join(workers, shards)
    first = shards[0].qualified
    cluster.artifact(shards[0])
    cluster.beside("compression", first, "recorded")
    workers.lose(workers.submitted[0].worker.address)
    for each in shards[1:]:
        cluster.artifact(each)
    assert workers.asked("build").count(first) == 1


def test_a_worker_whose_disk_is_full() -> None:
    step = failing(FullDiskError("full", "one"), ("build",), "one")
    workers, shards = FakeWorkers(["one", "two"], step), many(4)
    judge(join(workers, shards), shards)
    assert workers.said == ["full"]


def test_hidden_states_that_fill_a_disk_are_recorded_elsewhere() -> None:
    workers = FakeWorkers(
        ["one", "two"], failing(FullDiskError("full", "one"), ("capture",), "one")
    )
    each = shard("L00", prompts=True)
    assert join(workers, [each]).artifact(each).digest
    assert workers.said == ["full"]
    assert len(workers.asked("capture")) == 2


def test_hidden_states_that_fail_otherwise_are_not_asked_for_again() -> None:
    step = failing(ZeroDivisionError("a bug"), ("capture",))
    workers, each = FakeWorkers(["one"], step, every=1), shard("L00", prompts=True)
    cluster = join(workers, [each])
    with pytest.raises(ZeroDivisionError, match="a bug"):
        cluster.artifact(each)
    assert len(workers.asked("capture")) == 1


def test_hidden_states_that_kill_workers_are_named_with_their_model() -> None:
    killed = KilledWorker("capture", cast(Any, SimpleNamespace(address="tcp://one")), 4)
    workers, shards = FakeWorkers(["one"], failing(killed, ("capture", "build"))), many(3, True)
    cluster = join(workers, shards)
    for each in shards:
        assert cluster.artifact(each).digest == ""
        with pytest.raises(UnprovenError, match=r"^m: 4 workers were lost .*tcp://one"):
            cluster.measure(GateTest("compression", each.qualified))


def test_a_client_that_was_disconnected_asks_again() -> None:
    """Dask has then cancelled all its tasks, and the workers are as they were."""
    workers, each = FakeWorkers(["one"], lambda now: None), shard("L00")
    cluster = join(workers, [each])
    workers.cancel(workers.submitted)
    workers.step = do
    judge(cluster, [each])
    assert workers.asked("build") == ["m:L00", "m:L00"]


def test_what_kills_its_workers_is_given_up_whatever_it_is() -> None:
    lost = []

    def step(now: FakeWorkers) -> None:
        do(now, "explain")
        for future in now.submitted:
            if future.task == "explain" and future.worker in now:
                lost.append(future.worker.address)
                now.lose(future.worker.address, instead=f"{len(lost)}")

    workers, each = FakeWorkers(["one"], step), shard("L00")
    cluster = join(workers, [each])
    cluster.artifact(each)
    with pytest.raises(UnprovenError, match="4 workers were lost"):
        cluster.explain(each)
    assert lost == ["one", "1", "2", "3"]


def test_other_bytes_than_those_that_are_judged() -> None:
    """After a loss, at a Mac, or where a whole stack is measured: nothing is compared."""
    other = answer(files={"weights": "b" * 64}, label="two")
    workers, each = FakeWorkers(["one", "two"], measured_as(compression=other)), shard("L00")
    cluster = join(workers, [each])
    cluster.artifact(each)
    with pytest.raises(BuildError, match=r"m:L00: its package on two has other bytes .* than on "):
        cluster.measure(GateTest("compression", "m:L00"))


def test_a_gate_that_cannot_be_measured_raises_for_itself() -> None:
    """An error comes with the shard; what is left out for a bug is asked alone, and shows it."""
    step = measured_as(compression=UnprovenError("no palettes"))
    workers, each = FakeWorkers(["one"], step), shard("L00")
    cluster = join(workers, [each])
    cluster.artifact(each)
    with pytest.raises(UnprovenError, match="no palettes"):
        cluster.measure(GateTest("compression", "m:L00"))
    assert not workers.asked("measure")
    assert cluster.measure(GateTest("fidelity", "m:L00")).measurement == "measured"
    assert workers.asked("measure") == [GateTest("fidelity", "m:L00")]


def test_no_worker_that_could_build_is_waited_for_once() -> None:
    workers, shards = FakeWorkers(["one"], do), many(50)
    workers.can = lambda name: False
    cluster = join(workers, shards)
    for each in shards:
        assert cluster.artifact(each).digest == ""
    assert workers.rounds < 300
    shards = [shard(f"A{i}") for i in range(2)] + [shard(f"B{i}") for i in range(6)]
    workers = FakeWorkers(["one", "two"], do, can=lambda name: "B" in name)
    join(workers, shards)
    assert workers.asked("build") == ["m:B0", "m:B1", "m:B2", "m:B3"]


def _on_devices(step: Any = do) -> tuple[Any, FakeWorkers]:
    workers = FakeWorkers(["one"], step, every=1)
    workers.known["mac"] = worker_at("mac", MAC)
    shards = many(3)
    return join(workers, shards, lambda name: [("placement", "")]), workers


def test_a_neural_engine_is_asked_ahead_and_once() -> None:
    cluster, workers = _on_devices()
    for name in ("L00", "L01", "L02"):
        cluster.artifact(shard(name))
        assert cluster.measure_on_device("placement", f"m:{name}", "").label == "mac"
    asked = (f.args[0].subject for f in workers.submitted if f.task == "measure_on_device")
    assert Counter(asked) == {"m:L00": 1, "m:L01": 1, "m:L02": 1}


def test_a_neural_engine_that_is_lost_while_it_is_asked_ahead() -> None:
    cluster, workers = _on_devices(lambda now: do(now, "measure_on_device"))
    cluster.artifact(shard("L00"))
    assert workers.asked("measure_on_device")
    workers.lose("mac")
    with pytest.raises(UnprovenError, match=r"no usable worker with a Neural Engine is connected"):
        cluster.measure_on_device("placement", "m:L00", "")
