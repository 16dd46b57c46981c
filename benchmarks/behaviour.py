"""Time and peak memory of the default model's behaviour gate, and where the time goes.

    python -m benchmarks.behaviour [--cache DIR] [--manifest FILE] [--profile]

Runs the gate twice, each time in a process of its own: the first builds and records what the cache
lacks, the second is warm. Beside others on the machine, seconds of processors say what a free one
would take. `--profile` measures once more in this process and prints the functions
that take longest.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gate_times import ROOT, product, run

TARGET = "25 s, 3072 MiB"


def arguments(manifest: Path, cache: str | None) -> list[str]:
    """The gate's own options: this one test of the whole model."""
    asked = ["-m", "gate", "-k", "behaviour", "--ane-shards=all", f"--ane-manifest={manifest}"]
    return [*asked, *([f"--ane-cache={cache}"] if cache else [])]


def profile(asked: Sequence[str]) -> None:
    """The 60 functions that take longest, what they call included."""
    profiler = cProfile.Profile()
    profiler.runcall(pytest.main, ["-q", "-p", "no:cacheprovider", *asked])
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("cumulative").print_stats(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", help="cache folder; default is the user's")
    parser.add_argument("--manifest", type=Path, default=ROOT / "shards.toml")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    asked = arguments(options.manifest, options.cache)
    print(f"1024x1024 float32 product: {product():.1f} ms; target {TARGET}")
    print("| cache | seconds | of processors | peak MiB | exit |\n|---|---|---|---|---|")
    for state in ("cold or warm", "warm"):
        cost = run(*asked)
        print(
            f"| {state} | {cost.seconds:.1f} | {cost.processor:.1f} | {cost.mebibytes:.0f} "
            f"| {cost.code} |",
            flush=True,
        )
    if options.profile:
        profile(asked)


if __name__ == "__main__":
    main()
