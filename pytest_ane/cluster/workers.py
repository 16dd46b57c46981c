"""Who takes part in a run: workers that come, go, or are left out."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeAlias

import dask
from distributed import Client, Future
from distributed.client import AllExit, ClosedClientError
from distributed.comm.addressing import get_address_host, get_local_address_for
from distributed.utils import ensure_ip

from pytest_ane.cluster import tasks
from pytest_ane.cluster.job import Inputs, Job, needs_weights, versions
from pytest_ane.cluster.tasks import Introduction
from pytest_ane.gates.verdict import counted
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import AneError, ClusterError, UnprovenError
from pytest_ane.mlprogram.text import printable

PAUSE = 0.5
"""Seconds between two looks at who is there."""
SMALL = 10
"""Seconds that an answer may take to arrive from a worker that has it."""

TaskFuture: TypeAlias = "Future[Any]"


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker that takes part: Dask's address, what it says of itself, bytes that it may take."""

    address: str
    told: Introduction
    memory: int

    def __str__(self) -> str:
        return f"{self.told.label} ({self.address})"


class Workers:
    """Workers of a scheduler that fit the run; `ClusterError` where none answers in `timeout` s."""

    def __init__(
        self, url: str, timeout: float, say: Callable[[str], None], *, insecure: bool = False
    ) -> None:
        check_scheduler(url)
        require_trust(url, "--ane-cluster-insecure", insecure=insecure)
        self.url, self.timeout, self._say = url, timeout, say
        self._known: dict[str, Worker] = {}
        self._introductions: dict[str, TaskFuture] = {}
        self._left_out: dict[str, str] = {}
        self._bell = threading.Event()
        self._looked = -PAUSE
        self._token = uuid.uuid4().hex
        for name in ("distributed", "distributed.client", "distributed.core"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            with (
                warnings.catch_warnings(),
                dask.config.set({"distributed.comm.timeouts.connect": f"{timeout}s"}),
            ):
                warnings.simplefilter("ignore")
                self._client = Client(url, timeout=timeout, set_as_default=False)
        except (OSError, ValueError, NotYetError, ImportError) as error:
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise ClusterError(
                f"No scheduler answers at {printable(url)} ({printable(why, 200)}); "
                "start one with: dask scheduler"
            ) from None
        loop: Any = self._client.loop
        loop.asyncio_loop.set_exception_handler(_but_for_abandoned)

    def join(self, job: Job, inputs: Inputs) -> None:
        """Let all workers take part that have what this checkout gives; `ClusterError` for none."""
        self._job, self._inputs = job.packed(), inputs
        end = time.monotonic() + self.timeout
        to_answer = max(end, time.monotonic() + SMALL)
        while time.monotonic() < (to_answer if self._introductions else end):
            before = len(self._known)
            self.refresh()
            if self._known and not self._introductions:
                break
            if self._known and not before:
                to_answer = min(to_answer, time.monotonic() + SMALL)
            self.wait()
        if not self._known:
            what = "No worker is connected to"
            if self._left_out or self._introductions:
                what = "No worker that can take part answers at"
            raise ClusterError(self.nobody(what, ""))

    def __iter__(self) -> Iterator[Worker]:
        return iter([*self._known.values()])

    def __contains__(self, worker: Worker) -> bool:
        return self._known.get(worker.address) is worker

    @property
    def sentence(self) -> str:
        """`3 workers on 2 hosts, 1 of them with a Neural Engine`."""
        hosts = {worker.told.label for worker in self}
        devices = sum(worker.told.machine is not None for worker in self)
        with_ane = f", {devices} of them for a Neural Engine" if devices else ""
        workers, on = counted(len(self._known), "worker"), counted(len(hosts), "host")
        return f"{workers} on {on}{with_ane}"

    def has(self, worker: Worker, name: str) -> bool:
        """Whether a worker builds, and has what this machine has for a model or shard."""
        return worker.told.builds and self.has_same(worker, name)

    def can_build(self, worker: Worker, shard: Shard) -> bool:
        """Whether it has all that a shard is built from and compared with."""
        names = (shard.model,) * needs_weights(shard) + (shard.qualified,)
        return all(self.has(worker, name) for name in names)

    def has_same(self, worker: Worker, name: str) -> bool:
        """Whether a model's weights, or a shard's own files, are the same there as here."""
        return worker.told.inputs.digests.get(name) == self._inputs.digests.get(name)

    def submit(self, task: Callable[..., Any], *args: Any, at: Sequence[Worker]) -> TaskFuture:
        """Let a task of this run be done at one of some workers, all for the same kind of task."""
        resources = {"build" if at[0].told.builds else "ANE": 1}
        return self._submitted(task, *args, workers=[w.address for w in at], resources=resources)

    def _submitted(self, task: Callable[..., Any], *args: Any, **where: Any) -> TaskFuture:
        try:
            future = self._client.submit(task, self._token, *args, pure=False, **where)
        except ClosedClientError:
            self.require_scheduler()
            raise
        future.add_done_callback(lambda _: self._bell.set())
        return future

    def wait(self) -> None:
        """Until some task has ended, or it is time for another look."""
        self._bell.wait(PAUSE)
        self._bell.clear()

    def require_scheduler(self) -> None:
        """Raise `UnprovenError` where it is gone."""
        if self._client.status != "running":
            raise UnprovenError(
                f"the scheduler {self.url} is gone; start it and its workers again, and run again: "
                "what was built is kept"
            )

    def is_due(self) -> bool:
        """Whether the last look is some time ago."""
        return time.monotonic() - self._looked >= PAUSE

    def refresh(self) -> list[Worker]:
        """See who came and who went; those are given that took part and are gone."""
        self._looked = time.monotonic()
        self.require_scheduler()
        try:
            # `scheduler_info` may give what a callback has asked meanwhile, without any workers.
            scheduler: Any = self._client.scheduler
            there = self._client.sync(scheduler.identity, n_workers=-1)["workers"]
        except Exception:
            self.require_scheduler()
            return []
        gone = [self._known.pop(address) for address in self._known.keys() - there.keys()]
        for worker in gone:
            self._say(f"a worker on {worker} is gone")
        for address in self._introductions.keys() - there.keys():
            del self._introductions[address]
        for address in there.keys() - self._known.keys() - self._left_out.keys():
            self._introduce(address, there[address]["memory_limit"])
        return gone

    def leave_out(self, address: str, why: str) -> Worker | None:
        """Ask a worker nothing more; it is given back if it took part until now."""
        worker = self._known.pop(address, None)
        if address in self._left_out:
            return None
        self._left_out[address] = why
        self._say(f"the worker on {worker.told.label if worker else address} is left out: {why}")
        return worker

    def nobody(self, what: str, name: str) -> str:
        """That there is none at the scheduler, why the others will not do, how to add one."""
        reasons = list(dict.fromkeys(self._left_out.values()))
        for worker in self:
            lacking = worker.told.inputs.lacking
            reasons += [lacking[n] for n in (name, name.partition(":")[0]) if n in lacking][:1]
        why = f" ({'; '.join(reasons[:3])})" if reasons else ""
        return (
            f"{what} {self.url}{why}; in a checkout on another machine, run: "
            f"pytest-ane worker {self.url}"
        )

    def cancel(self, futures: Iterable[TaskFuture]) -> None:
        """Let workers not begin with what they have not begun."""
        with suppress(Exception):
            self._client.cancel(list(futures))

    def close(self) -> None:
        """Leave; workers finish what they have begun."""
        self.cancel(self._introductions.values())
        with suppress(Exception):
            self._client.close(timeout=SMALL)

    def _introduce(self, address: str, memory: int) -> None:
        if (future := self._introductions.get(address)) is None:
            future = self._submitted(tasks.introduce, self._job, versions(), workers=[address])
            self._introductions[address] = future
        if not future.done():
            return
        del self._introductions[address]
        if future.status in ("cancelled", "lost"):  # By a lost connection; it is asked again.
            return
        if future.status == "error":
            error = future.exception()
            why = str(error) if isinstance(error, AneError) else f"{type(error).__name__}: {error}"
            self.leave_out(address, f"it cannot take part ({why})")
            return
        with suppress(NotYetError):
            told: Introduction | None = future.result(timeout=SMALL)
            if why := _unfit(told):
                self.leave_out(address, why)
            else:
                assert told is not None
                worker = self._known[address] = Worker(address, told, memory)
                for name in self._inputs.digests:
                    if told.builds and not self.has(worker, name):
                        differ = "its files or weights differ from those here"
                        why = told.inputs.lacking.get(name, differ)
                        self._say(f"the worker on {told.label} builds nothing of {name}: {why}")


def check_scheduler(url: str) -> None:
    """`ClusterError` where a URL has no protocol of Dask's, host or port; nothing is connected."""
    if not re.fullmatch(r"(tcp|tls|ws|wss|ucx|ucxx)://[^/\s]+:\d{1,5}", url):
        raise ClusterError(
            f"{printable(url)} is no scheduler's address; give one such as tcp://10.0.0.7:8786."
        )


def require_trust(url: str, option: str, *, host: str = "", insecure: bool) -> str:
    """This machine's address towards a scheduler, or `host`, at which it may listen.

    `ClusterError` where others reach it or the scheduler, and nothing asks them who they are.
    """
    try:
        own = host or get_local_address_for(url).partition("://")[2].strip("[]")
        local = [ip_address(a).is_loopback for a in (own, ensure_ip(get_address_host(url)))]
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"{printable(host or url)} cannot be used ({printable(str(error))}); give an address "
            "that is there."
        ) from None
    if insecure or all(local) or url.startswith(("tls:", "wss:")):
        return own
    raise ClusterError(
        f"Whoever reaches {own if local[1] else printable(url)} could run code on this machine, "
        "as nobody is asked who they are; use tls:// and certificates (pytest-ane cluster-keys), "
        f"or {option} in a network that is all yours."
    )


def _but_for_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no task takes, but not a lost result that nobody waits for any more."""
    if not isinstance(context.get("exception"), AllExit):
        loop.default_exception_handler(context)


def _unfit(told: Introduction | None) -> str:
    if told is None:
        return "it is one of Dask's own; start it with: pytest-ane worker"
    here = versions()
    if not (differing := [name for name in here if told.versions.get(name) != here[name]]):
        return ""
    name = differing[0]
    there = told.versions.get(name, "unknown")
    return f"its {name} is {there}, and here it is {here[name]}; install the same there"
