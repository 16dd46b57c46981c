"""`pytest-ane worker`: processes of Dask on one machine, each for one task at a time."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dask
from distributed import Nanny

from pytest_ane.backends.coreml import Machine, without_ane
from pytest_ane.backends.coreml.machine import has_native
from pytest_ane.cluster.tasks import WorkerSetup
from pytest_ane.mlprogram.errors import ClusterError
from pytest_ane.mlprogram.memory import available_memory, bytes_text
from pytest_ane.mlprogram.text import printable

_SETTINGS = {
    # A worker's results are small, or files: nothing is to be written to disk for want of memory.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    # Nor does a worker that maps large weights wait until there is less.
    "distributed.worker.memory.pause": False,
    # Core ML runs in processes of its own, which a daemon may not have.
    "distributed.worker.daemon": False,
    "distributed.worker.multiprocessing-method": "spawn",
    # A profiler holds frames, and with them coremltools' writer of packages, which has written its
    # manifest only when it is gone.
    "distributed.worker.profile.enabled": False,
    # Each process looks after itself up to fifty times a second, which is a core's time of many.
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.worker.memory.monitor-interval": "1s",
}
_ANSWER = 5.0
"""Seconds between two questions whether a scheduler is still there."""


@dataclass(frozen=True)
class Offer:
    """What one machine gives: `builds` processes, a Mac that may be asked, and their modules.

    They listen at `host`.
    """

    url: str
    host: str
    builds: int
    mac: Machine | None
    setup: WorkerSetup
    preload: tuple[str, ...] = ()

    @cached_property
    def memory(self) -> int:
        return available_memory() // max(1, self.builds + (self.mac is not None))

    def __str__(self) -> str:
        each = f"{self.builds} to build, {bytes_text(self.memory)} each" if self.builds else ""
        mac = f"1 for the Neural Engine ({self.mac})" if self.mac else ""
        return f"{self.setup.label}: {'; '.join(filter(None, (each, mac)))}"


def machine_with_ane() -> Machine | None:
    """This Mac, if it has a Neural Engine: none in a virtual machine, or where Core ML is not."""
    if not has_native():
        return None
    machine = Machine.detect()
    return None if without_ane(machine.device_facts()) else machine


def serve(offer: Offer, joined: Callable[[], None]) -> None:
    """Take part until the person ends it, or `ClusterError`; `joined` is called once connected."""
    logging.getLogger("distributed").setLevel(logging.WARNING)
    with dask.config.set(_SETTINGS):
        asyncio.run(_serve(offer, joined))


async def _serve(offer: Offer, joined: Callable[[], None]) -> None:
    nannies = [Nanny(offer.url, **settings) for settings in _processes(offer)]
    try:
        try:
            await asyncio.gather(*nannies)
        except Exception as error:
            raise ClusterError(
                f"This machine cannot join {printable(offer.url)} "
                f"({printable(str(error) or type(error).__name__, 200)}); see whether a scheduler "
                "is there, and what this machine's processes say above"
            ) from None
        joined()
        await asyncio.gather(*(nanny.finished() for nanny in nannies))
    finally:
        await asyncio.gather(*(nanny.close(timeout=_ANSWER) for nanny in nannies))
    raise ClusterError(f"the scheduler {offer.url} is gone; start it, and this worker again")


def _processes(offer: Offer) -> Iterator[dict[str, Any]]:
    cores = os.cpu_count() or 1
    kinds: list[tuple[str, str, Machine | None]]
    kinds = [(f"{number}", "build", None) for number in range(offer.builds)]
    kinds += [("ane", "ANE", offer.mac)] * (offer.mac is not None)
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // max(1, len(kinds)))))
    for name, resource, machine in kinds:
        yield {
            "host": offer.host,
            "nthreads": 1,
            "memory_limit": offer.memory,
            "preload": list(offer.preload),
            "env": {
                "OMP_NUM_THREADS": threads,
                "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
                "GOMP_SPINCOUNT": "0",
                "DASK_LOGGING__DISTRIBUTED": "warning",
            },
            "name": f"{offer.setup.label}-{os.getpid()}-{name}",
            "resources": {resource: 1},
            "plugins": (replace(offer.setup, machine=machine),),
        }
