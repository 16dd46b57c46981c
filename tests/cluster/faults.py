"""What goes wrong in a worker, as its environment says: a module that `--preload` names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ane.gates.base import GateTest

SITE, FAULTS = "SITE_OF_TEST", "FAULTS_OF_TEST"
DAY = 86_400


def dask_setup(worker: Any) -> None:
    """Note this process's id, count what it builds, and let go wrong what is to go wrong."""
    site = Path(os.environ[SITE])
    (site / f"{worker.name}.pid").write_text(str(os.getpid()))
    _count(site)
    for fault in filter(None, os.environ.get(FAULTS, "").split(",")):
        name, _, value = fault.partition("=")
        _FAULTS[name](value, site)


def _count(site: Path) -> None:
    """Every conversion is a line of the site's `builds`; every measurement, of `measured`."""
    from pytest_ane.make import shard

    build = shard._build

    @wraps(build)
    def counted(one: Any, *args: Any) -> None:
        with (site / "builds").open("a") as file:
            file.write(f"{one.qualified} {os.getpid()}\n")
        build(one, *args)

    shard._build = counted

    def measured(device: str, tests: Sequence[GateTest]) -> None:
        with (site / "measured").open("a") as file:
            file.writelines(f"{test.gate} {test.subject} {device}\n" for test in tests)

    _around("measure", lambda args: measured("CPU", [args[1]]))
    _around("measure_shard", lambda args: measured("CPU", args[2]))
    _around("measure_on_device", lambda args: measured("ANE", [args[1]]))


def _around(task: str, before: Callable[[tuple[Any, ...]], None]) -> None:
    from pytest_ane.cluster import tasks

    does = getattr(tasks, task)

    @wraps(does)
    def later(*args: Any) -> Any:
        before(args)
        return does(*args)

    setattr(tasks, task, later)


def _slow(seconds: str, site: Path) -> None:
    """Every build takes so much longer; the site's `begun` names it meanwhile."""

    def wait(args: tuple[Any, ...]) -> None:
        with (site / "begun").open("a") as file:
            file.write(f"{args[1]} {os.getpid()}\n")
        time.sleep(float(seconds))

    _around("build", wait)


def _dawdle(seconds: str, site: Path) -> None:
    """Every measurement takes so much longer."""
    _around("measure_shard", lambda args: time.sleep(float(seconds)))


def _die(shard: str, site: Path) -> None:
    """The process is killed whenever it is to build this shard."""
    _around("build", lambda args: _kill() if args[1].endswith(shard) else None)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _version(value: str, site: Path) -> None:
    """A library has another version."""
    from pytest_ane.cluster import tasks

    name, _, number = value.partition(":")
    versions = {**tasks.versions(), name: number}
    tasks.versions = lambda: versions  # type: ignore[assignment]


def _genuine(value: str, site: Path) -> None:
    """A replayed Mac passes for a Mac."""
    from pytest_ane.backends.coreml import backend

    backend.is_replaced = lambda: False


_FAULTS = {"slow": _slow, "dawdle": _dawdle, "die": _die, "version": _version, "genuine": _genuine}
