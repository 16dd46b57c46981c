"""Every fault of the packages that people bring, in every form of naming references."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from tests.battery.brought.run import FORMS, KINDS, Said, judged, quiet
from tests.battery.brought.table import page
from tests.battery.run import ROOT

RESULTS = ROOT / "build" / "battery" / "brought.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults that are chosen and print the tables; `--write` stores them as a page too."""
    parser = argparse.ArgumentParser(prog="python -m tests.battery.brought", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="every Nth fault")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of right packages' probes")
    parser.add_argument("--only", default="", help="kind/fault, a regular expression")
    parser.add_argument("--forms", default="", help="forms, a regular expression")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON of all that was said")
    parser.add_argument("--resume", action="store_true", help="leave out what the results have")
    parser.add_argument("--write", type=Path, help="write the page")
    options = parser.parse_args(arguments)
    forms = [form for form in FORMS if re.search(options.forms, form)]
    said = list[Said]()
    if options.resume and options.results.exists():
        said = [Said(**each) for each in json.loads(options.results.read_text())]
    done = {(s.kind, s.flaw, s.seed) for s in said}
    faults = [(kind.name, flaw.name, 0) for kind in KINDS.values() for flaw in kind.flaws]
    rights = [(name, "", seed) for name in KINDS for seed in range(options.seeds)]
    tasks = [
        task
        for task in (*rights, *faults[:: options.every])
        if re.search(options.only, f"{task[0]}/{task[1]}") and task not in done
    ]
    # A process makes the right packages of a kind once, so a kind's faults are together.
    tasks.sort(key=lambda task: task[0])
    start = time.perf_counter()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, get_context("spawn"), quiet) as pool,
    ):
        futures = [
            pool.submit(judged, kind, flaw, forms, seed, Path(folder)) for kind, flaw, seed in tasks
        ]
        for i, (future, task) in enumerate(zip(futures, tasks, strict=True), 1):
            said += future.result()
            options.results.write_text(json.dumps([asdict(each) for each in said], indent=1))
            if sys.stderr.isatty():
                print(f"\r{i}/{len(tasks)} {task[0]} {task[1]:40}", end="", file=sys.stderr)
    text = page(said)
    print(text)
    print(f"{len(said)} verdicts in {(time.perf_counter() - start) / 60:.1f} minutes")
    if options.write:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
