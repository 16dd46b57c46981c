"""Fidelity of right shards by the seed of their probes: no verdict should hang on it.

For instance `python -m benchmarks.seeds --manifest examples/gemma4.toml --shards L00 --seeds 40`.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from pytest_ane.gates import GATES
from pytest_ane.project.project import OpenShard, read_project
from pytest_ane.report.verdict import reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--shards", default="", help="ids, a regular expression")
    parser.add_argument("--seeds", type=int, default=40, help="from 1 to this")
    options = parser.parse_args()
    project = read_project(options.manifest, None)
    gate = GATES["fidelity"]
    for shard in project.shards:
        if not re.search(options.shards, shard.id):
            continue
        red, lowest, start = 0, 1.0, time.process_time()
        with project.use():
            for seed in range(1, options.seeds + 1):
                probes = shard.probes.model_copy(update={"seed": seed})
                seeded = shard.model_copy(update={"probes": probes})
                measurement = gate.measure(OpenShard(project, seeded))
                verdict = gate.judge(measurement, gate.policy(seeded.policy), seeded)
                figures = {figure.name: figure.value for figure in verdict.figures}
                lowest = min(lowest, float(figures.get("cosine.flat.min", 1.0)))
                if verdict.status != "passed":
                    red += 1
                    print(f"  seed {seed}: {reasons(verdict)[0]}")
        seconds = (time.process_time() - start) / options.seeds
        print(
            f"{shard.qualified}: {red} of {options.seeds} seeds red, lowest pooled cosine "
            f"{lowest:.4f}; {seconds:.1f} s of processor time a seed",
            flush=True,
        )


if __name__ == "__main__":
    main()
