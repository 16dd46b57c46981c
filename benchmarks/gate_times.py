"""Wall time and peak memory of the main commands, cold and warm.

    python benchmarks/gate_times.py [--all] [--manifest FILE]

Every command runs in a process of its own, the cold ones with an empty cache. `--all` adds the
whole model, which takes some minutes. The machine's own speed is printed beside it, as the time of
one float32 matrix product, so that figures of different days can be told apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@dataclass(frozen=True)
class Cost:
    """Wall time in seconds, peak resident memory in MiB, exit code, and seconds of processors."""

    seconds: float
    mebibytes: float
    code: int
    processor: float


def run(*arguments: str, folder: Path = ROOT) -> Cost:
    """Run pytest once; memory is that of the process and the largest of its children."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*PYTEST, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    return Cost(
        time.perf_counter() - start,
        usage.ru_maxrss / 1024,
        os.waitstatus_to_exitcode(status),
        usage.ru_utime + usage.ru_stime,
    )


def product() -> float:
    """Milliseconds of a 1024 x 1024 float32 matrix product, median of 20."""
    x = np.ones((1024, 1024), np.float32)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        _ = x @ x
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def collect_overhead(rounds: int = 15) -> tuple[float, float]:
    """Median seconds of `pytest --co` on one test, without and with the plugin, by turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_one.py").write_text("def test_one():\n    pass\n")
        (folder / "pytest.ini").touch()
        without, with_ = [], []
        for _ in range(rounds):
            without.append(run("--co", "-p", "no:ane", folder=folder).seconds)
            with_.append(run("--co", folder=folder).seconds)
        return statistics.median(without), statistics.median(with_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the whole model too")
    parser.add_argument("--manifest", type=Path, default=ROOT / "shards.toml")
    options = parser.parse_args()
    print(f"1024x1024 float32 product: {product():.1f} ms")
    print("| command | cache | seconds | peak MiB | exit |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for selection in ("L01", "all") if options.all else ("L01",):
            gate = ("-m", "gate", f"--ane-shards={selection}", f"--ane-cache={cache}/{selection}",
                    f"--ane-manifest={options.manifest}")  # fmt: skip
            for state in ("cold", "warm", "warm"):
                cost = run(*gate)
                print(
                    f"| `--ane-shards={selection} -m gate` | {state} | {cost.seconds:.1f} "
                    f"| {cost.mebibytes:.0f} | {cost.code} |",
                    flush=True,
                )
    without, with_ = collect_overhead()
    print(
        f"`pytest --co` of one test: {without * 1e3:.0f} ms without the plugin, "
        f"{with_ * 1e3:.0f} ms with it: {(with_ - without) * 1e3:+.0f} ms"
    )


if __name__ == "__main__":
    main()
