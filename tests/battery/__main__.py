"""The battery: every fault through the gates of its shards, and the table of what they say."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from tests.battery import FAULTS
from tests.battery.run import ROOT, Result, quiet, result
from tests.battery.table import page

RESULTS = ROOT / "build" / "battery" / "results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults that are chosen and print the table; `--write` stores it as a page too."""
    parser = argparse.ArgumentParser(prog="python -m tests.battery", description=__doc__)
    parser.add_argument("--only", default="", help="names of faults, a regular expression")
    parser.add_argument("--shards", default="", help="qualified ids, a regular expression")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--full", action="store_true", help="ZAYA and Gemma as the examples have them"
    )
    parser.add_argument("--write", type=Path, help="write the page, docs/battery.md")
    options = parser.parse_args(arguments)
    pairs = [
        (fault.name, shard)
        for fault in FAULTS.values()
        if re.search(options.only, fault.name)
        for shard in fault.shards
        if re.search(options.shards, shard)
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    results = run(pairs, options.jobs, options.full)
    minutes = (time.perf_counter() - start) / 60
    text = page(results)
    print(text)
    print(f"{len(pairs)} runs in {minutes:.1f} minutes; {RESULTS.relative_to(ROOT)} has them.")
    if options.write:
        options.write.write_text(text)
    return 0


def run(pairs: Sequence[tuple[str, str]], jobs: int, full: bool) -> list[Result]:
    """The results of faults and shards, in order; all there are so far are in the file."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), quiet, (full,)) as pool:
        futures = [pool.submit(result, *pair) for pair in pairs]
        done: list[Result] = []
        for i, (future, pair) in enumerate(zip(futures, pairs, strict=True), 1):
            done.append(future.result())
            if i % 10 == 0 or i == len(pairs):
                RESULTS.write_text(json.dumps([asdict(r) for r in done], indent=1))
            if sys.stderr.isatty():
                print(f"\r{i}/{len(pairs)} {pair[0]:40}", end="", file=sys.stderr, flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())
