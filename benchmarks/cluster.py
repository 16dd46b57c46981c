"""Tiny seeded shards over a cluster of this machine, beside one process that does them alone.

    python -m benchmarks.cluster [--shards N] [--workers N]

Both begin with empty caches. Workers have one thread of numpy and torch each, and so has the
process alone. What the machine that runs pytest does for a gate is its processor time beyond that
of a run with a tenth of the shards, by gate; its memory likewise.
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
    options = parser.parse_args()
    few = max(2, options.shards // 10)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = run(folder / "alone", options.shards)
        with cluster(folder / "site", options.workers) as url:
            run(folder / "first", few, url)  # Workers import what they need.
            small = run(folder / "small", few, url, seed=8)
            spread = run(folder / "spread", options.shards, url)
    ratio = spread.wall * options.workers / alone.wall
    gates = GATES * (options.shards - few)
    each = (spread.processor - small.processor) / gates
    memory = (spread.memory - small.memory) / gates
    print(f"alone: {options.shards} shards in {alone.wall:.1f} s")
    print(
        f"{options.workers} workers: {spread.wall:.1f} s, {ratio:.2f} of the work divided by them"
    )
    print(f"pytest's own process: {1000 * each:.1f} ms and {memory / 1000:.1f} kB a gate")


def run(folder: Path, shards: int, url: str = "", seed: int = 7) -> Cost:
    """Gate so many shards from nothing."""
    folder.mkdir()
    text = MANIFEST.format(layers=shards, last=f"{shards - 1:02}").replace("= 7,", f"= {seed},", 1)
    (folder / "shards.toml").write_text(text)
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "gate", "--ane-shards=all", "-p",
        "no:cacheprovider", f"--rootdir={folder}", f"--ane-cache={folder / 'cache'}",
        *([f"--ane-cluster={url}"] if url else []),
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
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """A scheduler and a machine with so many processes; the scheduler's URL."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    commands = (
        ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", url.rpartition(":")[2],
         "--no-dashboard"],
        ["-m", "pytest_ane.cli", "worker", url, "--builds", str(workers), "--cache",
         str(folder / "cache"), "--folder", str(folder)],
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
        while b"connected to" not in (folder / "log").read_bytes():
            time.sleep(0.1)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
