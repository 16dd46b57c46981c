"""What the process of its own costs a call of Core ML, on a replayed Mac.

    python -m benchmarks.device_process [--calls 20]

A model that doubles its input is loaded and called with and without the process. The replayed Mac
computes in no time that resembles a Mac's, so the difference in milliseconds is what counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml.process import Device
from pytest_ane.mac.testing import Mac, Replayer, Script
from pytest_ane.make import Cache
from tests.mlprogram.packages import Program

MEGABYTES = (0.001, 1, 16, 64)
"""Of the input; the output is as large."""
TARGET = 30
"""Milliseconds more a call."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--largest", type=float, default=MEGABYTES[-1], help="MB of an input")
    options = parser.parse_args()
    print("| input, MB | what | here, ms | process, ms | ratio | more, ms |")
    print("|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder, Replayer(Script(Mac(compiler=""))):
        cache = Cache(Path(folder, "cache"))
        backends = [CoreMLBackend(cache, device=Device(timeout)) for timeout in (None, 600)]
        for megabytes in filter(options.largest.__ge__, map(float, MEGABYTES)):
            _measure(backends, megabytes, Path(folder, str(megabytes)), options.calls)


def _measure(backends: list[CoreMLBackend], megabytes: float, folder: Path, calls: int) -> None:
    x = np.ones((1, int(megabytes * (1 << 20)) // 4), np.float32)
    package = _doubling(x.shape).save(folder)
    for backend in backends:  # Compiled, and the process started.
        backend.load(package).predict({"x": x})
    loads = [_times(partial(backend.load, package), calls) for backend in backends]
    _row(megabytes, "load", *loads)
    runners = [backend.load(package) for backend in backends]
    predicts = [_times(partial(runner.predict, {"x": x}), calls) for runner in runners]
    more = _row(megabytes, "call", *predicts)
    if more > TARGET:
        print(f"missed: a call with {megabytes:g} MB takes {more:.1f} ms more; {TARGET} allowed")


def _doubling(shape: tuple[int, ...]) -> Program:
    program = Program()
    program.input("x", shape)
    program.op("add", "y", shape=shape, x="x", y="x")
    program.output("y")
    return program


def _times(call: Callable[[], object], calls: int) -> float:
    """The median in milliseconds."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return median(times)


def _row(megabytes: float, what: str, here: float, process: float) -> float:
    more = process - here
    figures = " | ".join(f"{n:.2f}" for n in (here, process, process / here, more))
    print(f"| {megabytes:g} | {what} | {figures} |")
    return more


if __name__ == "__main__":
    main()
