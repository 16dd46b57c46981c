"""Tiny seeded shards over a cluster of this machine, beside one process that does them alone.

    python -m benchmarks.cluster [--shards N] [--workers N] [--rounds N] [--echoed N]

Both begin with empty caches. Their times are added over the rounds, and which of them is first
alternates. Workers have one thread of numpy and torch each, and so has the process alone, and a
third worker is a replayed Neural Engine, which nobody asks.

What the machine that runs pytest does for a task is measured with more shards (`--echoed`), of
which workers build few and repeat their answers (`benchmarks.echo`): its processor time beyond
that of a run with a tenth of them, by task. Its memory is the peak, less that of collecting as many
tests alone, by verdict.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MANIFEST = """
[models.tiny]
family = "llama"
source = {{ seeded = 7, config = {{ hidden_size = 64, intermediate_size = 128, num_hidden_layers = \
{layers}, num_attention_heads = 2, num_key_value_heads = 1, vocab_size = 64 }} }}
shards = "L00-L{last}"
max-tokens = 16

[models.tiny.probes]
kinds = ["gaussian"]
count = 1
"""
GATES = 3
"""Of a shard, with the usual arithmetic: compression, fidelity, placement."""
TASKS = 2
"""Of a shard: its package is built, and measured."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Cost:
    """Of pytest's own process: wall and processor seconds, and peak resident bytes."""

    wall: float
    processor: float
    memory: int


def main() -> None:
    """Print the three figures that have targets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=240)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--echoed", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.shards:
            spread(Path(name) / "spread", options.shards, options.workers, options.rounds)
        if options.echoed:
            echo(Path(name) / "echo", options.echoed, options.workers)


def spread(folder: Path, shards: int, workers: int, rounds: int) -> None:
    """One process beside workers that do as much; first the one, then the others, and so on."""
    total = {alone: 0.0, over: 0.0}
    for number in range(rounds):
        for measure in (alone, over)[:: -1 if number % 2 else 1]:
            cost = measure(folder / str(number), shards, workers)
            total[measure] += cost.wall
            print(
                f"{measure.__name__}: {shards} shards in {cost.wall:.1f} s; pytest's process had "
                f"{cost.processor:.1f} s of a core, {cost.memory / 1e6:.0f} MB",
                flush=True,
            )
    print(f"{total[over] * workers / total[alone]:.2f} of the work divided by the workers")


def alone(folder: Path, shards: int, workers: int) -> Cost:
    """In one process."""
    return run(folder / "alone", shards)


def over(folder: Path, shards: int, workers: int) -> Cost:
    """Over workers of a cluster of its own."""
    with cluster(folder / "site", workers) as url:
        run(folder / "first", max(2, shards // 10), url)  # Workers import what they need.
        return run(folder / "over", shards, url, seed=8)


def echo(folder: Path, shards: int, workers: int) -> None:
    """What a task and a verdict cost where pytest runs."""
    few = max(2, shards // 10)
    with cluster(folder / "site", workers, "--preload", "benchmarks.echo") as url:
        run(folder / "first", 2, url)
        small, large = (run(folder / str(n), n, url) for n in (few, shards))
    collected = [run(folder / f"collected {n}", n, url, only="--collect-only").memory
                 for n in (few, shards)]  # fmt: skip
    more = shards - few
    each = (large.processor - small.processor) / (TASKS * more)
    growth = (large.memory - small.memory) / (GATES * more)
    own = (collected[1] - collected[0]) / (GATES * more)
    print(f"{TASKS * shards} tasks: {large.wall:.1f} s; of the machine that runs pytest "
          f"{1000 * each:.1f} ms a task, {(growth - own) / 1000:.1f} kB a verdict "
          f"({own / 1000:.1f} kB more to collect its test)")  # fmt: skip


def run(folder: Path, shards: int, url: str = "", seed: int = 7, only: str = "") -> Cost:
    """Gate so many shards from nothing."""
    folder.mkdir(parents=True)
    text = MANIFEST.format(layers=shards, last=f"{shards - 1:02}").replace("= 7,", f"= {seed},", 1)
    (folder / "shards.toml").write_text(text)
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "gate", "--ane-shards=all", "-p",
        "no:cacheprovider", f"--rootdir={folder}", f"--ane-cache={folder / 'cache'}",
        *([f"--ane-cluster={url}"] if url else []), *([only] if only else []),
    ]  # fmt: skip
    start = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=os.environ | ONE_THREAD
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit((folder / "log").read_text()[-2000:])
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


@contextmanager
def cluster(folder: Path, workers: int, *more: str) -> Iterator[str]:
    """A scheduler, a machine with so many processes, and a replayed Mac; the scheduler's URL."""
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    commands = (
        ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", url.rpartition(":")[2],
         "--no-dashboard"],
        ["-m", "pytest_ane.cli", "worker", url, "--builds", str(workers), "--cache",
         str(folder / "cache"), "--folder", str(folder), *more],
        ["-m", "tests.cluster.mac", "worker", url, "--builds", "0", "--folder", str(folder),
         "--preload", "tests.cluster.mac"],
    )  # fmt: skip
    processes = []
    try:
        with (folder / "log").open("wb") as log:
            for command in commands:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, *command],
                        stdout=log,
                        stderr=log,
                        env=os.environ | ONE_THREAD,
                    )
                )
        while (folder / "log").read_bytes().count(b"connected to") < 2:
            if any(process.poll() is not None for process in processes):
                raise SystemExit((folder / "log").read_text()[-2000:])
            time.sleep(0.1)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
