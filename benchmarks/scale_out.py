"""ZAYA1-8B's mixtures built and gated by two workers, beside one worker on half the machine.

    python benchmarks/scale_out.py [--shards N] [--alone N] [--cache DIR]

Every run begins with an empty cache. One worker is held to one core; two have the whole machine.
The resident memory of all processes of a run is sampled, so that growth over the run can be seen.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = ROOT / "examples" / "zaya1-8b.toml"


@dataclass(frozen=True)
class Cost:
    """Wall time in seconds, and peak resident MiB in the quarters of the run."""

    seconds: float
    quarters: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=40, help="for two workers")
    parser.add_argument("--alone", type=int, default=4, help="for one worker")
    parser.add_argument("--cache", type=Path, help="a folder with room for 4 GB")
    options = parser.parse_args()
    mixtures = [f"L{i:02}" for i in range(1, 80, 2)]
    alone = run(mixtures[: options.alone], 1, options.cache)
    both = run(mixtures[: options.shards], 2, options.cache)
    one, two = alone.seconds / options.alone, both.seconds * 2 / options.shards
    print(f"one worker, one core: {options.alone} shards, {alone.seconds:.1f} s, {one:.2f} s each")
    print(f"two workers: {options.shards} shards, {both.seconds:.1f} s, {two:.2f} s each a worker")
    print(f"two workers against one: {two / one:.2f}")
    print(f"peak MiB by quarter of the run: {both.quarters} with two, {alone.quarters} with one")


def run(shards: Sequence[str], workers: int, cache: Path | None) -> Cost:
    """Gate these shards from nothing."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "gate", f"--ane-manifest={MANIFEST}",
            f"--ane-shards={','.join(shards)}", f"--ane-cache={folder}", "-n", str(workers),
        ]  # fmt: skip
        cores = sorted(os.sched_getaffinity(0))[:workers]
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        sampler = Sampler(process.pid)
        code = process.wait()
        seconds = time.perf_counter() - start
        if code:
            raise SystemExit(f"{' '.join(command)} ended with {code}")
        return Cost(seconds, sampler.quarters())


class Sampler(threading.Thread):
    """Resident memory of a process and all below it, twice a second, until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._samples: list[int] = []
        self.start()

    def run(self) -> None:
        """Sample."""
        while (found := resident(self._pid)) is not None:
            self._samples.append(found)
            time.sleep(0.5)

    def quarters(self) -> tuple[int, ...]:
        """The peak of each quarter of the run in MiB."""
        count = len(self._samples)
        parts = [self._samples[count * i // 4 : count * (i + 1) // 4] for i in range(4)]
        return tuple(max(part, default=0) >> 20 for part in parts)


def resident(pid: int) -> int | None:
    """Resident bytes of a process and its descendants; None where it has ended."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return None
    return own + sum(resident(int(child)) or 0 for child in children) if own else None


if __name__ == "__main__":
    main()
