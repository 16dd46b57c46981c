"""What asking a memory of 100,000 lines takes, with duckdb and by reading the JSON in Python.

    python benchmarks/history.py --runs 84 --shards 240

Each shard has lines of placement, compression, fidelity, hazards and throughput in every run. Most
figures are the same in all runs, one shard in ten changes once, and tokens a second vary by 2 %.
Every way runs in a process of its own, so that its peak memory is known.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

_PROGRAM = """
import json, sys
from collections import defaultdict
from pathlib import Path

def series(path):
    found = defaultdict(list)
    with open(path, "rb") as file:
        for line in file:
            data = json.loads(line)
            key = data["subject"], data["gate"], data["test"], data["backend"]
            for name, value in data["figures"].items():
                if isinstance(value, (int, float)):
                    found[(*key, name)].append((data["run"], value))
    return {key: values for key, values in found.items() if len({v for _, v in values}) > 1}

print(len(series(Path(sys.argv[1], "m.jsonl"))))
"""
_DUCKDB = """
import sys
from pathlib import Path
from pytest_ane.history.memory import Memory

print(len(Memory(Path(sys.argv[1])).series(changing=True)))
"""
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
        file = Path(name, "m.jsonl")
        with file.open("wb") as stream:  # A child's peak counts from its parent's memory.
            stream.writelines(_lines(asked.runs, asked.shards))
        count = asked.runs * asked.shards * len(_FIGURES)
        print(f"{count:,} lines, {file.stat().st_size / 1e6:.0f} MB")
        history = ["-m", "pytest_ane.cli", "history", "--history", name]
        ways = {
            "an empty pytest-ane --version": ["-m", "pytest_ane.cli", "--version"],
            "pytest-ane history: overview with steps": history,
            "pytest-ane history cosine.min --shards L011": [*history, "cosine.min", "--shards",
                                                            "L011"],
            f"pytest-ane history diff {3:032x}": [*history, "diff", f"{3:032x}",
                                                  f"{asked.runs - 4:032x}"],
            "series that change, with duckdb": ["-c", _DUCKDB, name],
            "the same, json.loads in Python": ["-c", _PROGRAM, name],
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


def _lines(runs: int, shards: int) -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    for run in range(runs):
        for shard in range(shards):
            changed = shard % 10 == 1 and run >= shard % runs
            for gate, names in _FIGURES.items():
                noise = rng.normal(1, 0.02, len(names)) if gate == "throughput" else 1.0
                steady = np.arange(1, len(names) + 1) / 7 + shard / 1000 + 0.3 * changed
                yield _line(run, shard, gate, dict(zip(names, steady * noise, strict=True)))


def _line(run: int, shard: int, gate: str, figures: dict[str, float]) -> bytes:
    data = {
        "format": 1, "run": f"{run:032x}", "time": f"2026-{1 + run // 28:02}-{1 + run % 28:02}"
        "T10:00:00Z", "commit": f"{run:040x}", "clean": True, "gate": gate,
        "subject": f"m:L{shard:03}", "test": "call[T1]" if gate == "throughput" else "",
        "artifact": f"{shard:064x}", "question": "c" * 64, "backend": "cpu", "arithmetic": "",
        "machine": "2 cores, 1 BLAS thread", "chip": "AMD EPYC", "os": "Linux x86_64",
        "compute_units": "", "recorded": "",
        "versions": {"pytest-ane": "0.1.0", "numpy": "2.3.5", "python": "3.11.7"},
        "figures": {name: float(value) for name, value in figures.items()},
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    main()
