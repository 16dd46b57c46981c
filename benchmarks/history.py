"""What asking a memory of 100,000 records takes.

    python benchmarks/history.py --runs 84 --shards 240

Each shard has records of five gates in every run. Most figures are the same in all runs, one shard
in ten changes once, and tokens a second vary by 2 %.
Every question is asked in a process of its own, so that its peak memory is known.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from pytest_ane.records.record import Record
from pytest_ane.records.run import Facts, Writer

_COSINES = ("cosine.min", "cosine.mean", "contribution.min", "cosine.captured.min", "cosine.seeded")
_FIGURES = {
    "placement": ("compute_ops", "likely_ane_ops", "ineligible_ops", "warned_ops", "size_bytes",
                  "conv_total", "conv_eligible", "left_out_ops"),
    "compression": ("size_bytes", "ratio", "weights", "weights_compressed", "min_snr_db"),
    "fidelity": (*_COSINES, "algebra.max", "algebra.rms", "rounding.max", "rounding.rms",
                 "compression_error.max", "compression_error.rms", "total_error.max",
                 "total_error.rms", "finite", "probes", "probes.live", "input.max",
                 "relative_l2.max", "error.max", "error.relative.max"),
    "hazards": ("sum.max", "order", "infinity", "dropped.max", "table.max", "probes",
                "products.recorded", "products.inferred"),
    "throughput": ("seconds", "tok_s", "ms_token", "rounds", "tokens", "control_seconds"),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=84)
    parser.add_argument("--shards", type=int, default=240)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        for run in range(asked.runs):
            _write(Path(name), run, asked.shards)
        size = sum(file.stat().st_size for file in Path(name).iterdir())
        count = asked.runs * asked.shards * len(_FIGURES)
        print(f"{count:,} records, {size / 1e6:.0f} MB")
        last = f"{asked.runs - 1:032x}"
        history = ["-m", "pytest_ane.cli", "history", "--history", name]
        ways = {
            "an empty pytest-ane --version": ["-m", "pytest_ane.cli", "--version"],
            "pytest-ane history: overview with steps": history,
            "pytest-ane history cosine.min --shards L011": [*history, "cosine.min", "--shards",
                                                            "L011"],
            "pytest-ane history diff, first and last run": [*history, "diff", f"{0:032x}", last],
        }  # fmt: skip
        for label, arguments in ways.items():
            runs = [_measured(arguments) for _ in range(asked.times)]
            seconds, processor, megabytes = zip(*runs, strict=True)
            print(f"{label[:48]:<48} {median(seconds):6.2f} s", end=" ")
            print(f"{median(processor):6.2f} s of processors {max(megabytes):6.0f} MB")


def _measured(arguments: list[str]) -> tuple[float, float, float]:
    """Seconds, those of processors, and peak memory in megabytes."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments} failed.")
    unit = 1e6 if sys.platform == "darwin" else 1e3
    processor = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, processor, usage.ru_maxrss / unit


def _write(folder: Path, run: int, shards: int) -> None:
    day = datetime(2026, 1 + run // 28, 1 + run % 28, 10, tzinfo=timezone.utc)
    facts = Facts(id=f"{run:032x}", started=f"{day:%Y-%m-%dT%H:%M:%SZ}", commit=f"{run:040x}")
    writer, rng = Writer(folder, facts), np.random.default_rng(run)
    for shard in range(shards):
        changed = shard % 10 == 1 and run >= shard % 84
        for gate, names in _FIGURES.items():
            noise = rng.normal(1, 0.02, len(names)) if gate == "throughput" else 1.0
            steady = np.arange(1, len(names) + 1) / 7 + shard / 1000 + 0.3 * changed
            figures = zip(names, map(float, steady * noise), strict=True)
            writer.add(
                Record(
                    gate=gate,
                    subject=f"m:L{shard:03}",
                    time=day,
                    part="call[T1]" if gate == "throughput" else "",
                    files={f"L{shard:03}/weight.bin": f"{shard:064x}"},
                    environment={"backend": "cpu", "chip": "AMD EPYC", "numpy": "2.3.5"},
                    asked={"reference": "float32"},
                    figures=dict(figures),
                )
            )


if __name__ == "__main__":
    main()
