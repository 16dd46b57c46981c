"""What the ANE's arithmetic costs, as ratios to the program's own types in one run.

    python -m benchmarks.ane_speed [--threads N] [--repeats N] [--only L01,stack,zaya]

The fidelity measurement of the default model's L01 (its probes, from the cache), the behaviour
measurement of the whole stack on its golden prompts, and a full-size ZAYA1-8B mixture
(zaya_shard.py) on 8 probes at T = 1 and 8 at T = 4, its weights decoded in every call. Both
arithmetics run by turns; each time is the least of several, in seconds of processors.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--repeats", type=int, default=4)
parser.add_argument("--only", default="L01,stack,zaya")
OPTIONS = parser.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np  # noqa: E402 - after the threads are chosen

from benchmarks.zaya_shard import WIDTH, Shard  # noqa: E402
from pytest_ane.backends import CpuBackend  # noqa: E402
from pytest_ane.gates.registry import GATES  # noqa: E402
from pytest_ane.project.project import OpenShard, Project, read_project  # noqa: E402

Work = Callable[[Literal["typed", "ane"]], Callable[[], Any]]
"""What is timed in one arithmetic."""
MANIFEST = Path(__file__).parents[1] / "shards.toml"


def fidelity(project: Project) -> Work:
    """The gate's measurement of one shard."""
    shard = next(s for s in project.shards if s.id == "L01")

    def work(arithmetic: Literal["typed", "ane"]) -> Callable[[], Any]:
        own = Project(project.manifest, project.shards)
        own.backend = CpuBackend(arithmetic=arithmetic)
        return lambda: GATES["fidelity"].measure(OpenShard(own, shard))

    return work


def behaviour(project: Project) -> Work:
    """The gate's measurement of the whole stack, whose reference was recorded before."""

    def work(arithmetic: Literal["typed", "ane"]) -> Callable[[], Any]:
        own = Project(project.manifest, project.shards)
        own.backend = CpuBackend(arithmetic=arithmetic)
        stack = own.stack("smollm2")
        _ = stack.chain, stack.golden, stack.reference
        return lambda: GATES["behaviour"].measure(stack)

    return work


def zaya(folder: Path) -> Work:
    """Probes through a mixture of 201 M weights."""
    path = Shard().save(folder, 4)
    rng = np.random.default_rng(1)
    probes = [
        {"x": rng.standard_normal((1, WIDTH, t, 1)).astype(np.float16).astype(np.float32)}
        for t in (1, 4)
        for _ in range(8)
    ]

    def work(arithmetic: Literal["typed", "ane"]) -> Callable[[], Any]:
        runner = CpuBackend(arithmetic=arithmetic).load(path)
        return lambda: runner.predict_all(probes, [None] * len(probes))

    return work


def timed(work: Work) -> tuple[float, float]:
    """Seconds of processors in both arithmetics, each the least of several."""
    typed, ane = work("typed"), work("ane")
    seconds: dict[Any, list[float]] = {typed: [], ane: []}
    for _ in range(OPTIONS.repeats):
        for run, times in seconds.items():
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
    return min(seconds[typed]), min(seconds[ane])


def cases(folder: Path) -> Iterator[tuple[str, float, Work]]:
    """What is measured, its target, and the work."""
    chosen = OPTIONS.only.split(",")
    if {"L01", "stack"} & set(chosen):
        with read_project(MANIFEST, None, arithmetic=("typed",)).use() as project:
            if "L01" in chosen:
                yield "SmolLM2 L01, fidelity", 3, fidelity(project)
            if "stack" in chosen:
                yield "SmolLM2, the whole stack's behaviour", 3, behaviour(project)
    if "zaya" in chosen:
        yield "ZAYA1-8B mixture at full size, 16 probes", 4, zaya(folder)


def main() -> None:
    print("| what | typed, s | ane, s | times as long | target |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for what, target, work in cases(Path(name)):
            typed, ane = timed(work)
            row = f"| {what} | {typed:.2f} | {ane:.2f} | {ane / typed:.2f} | {target} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
