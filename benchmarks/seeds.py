"""Fidelity of right shards by the seed of their probes: no verdict should hang on it.

For instance `python -m benchmarks.seeds --manifest examples/gemma4.toml --shards L00 --seeds 40`.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_ane.backends import CpuBackend
from pytest_ane.gates import GATES
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make.shard import converted_package
from pytest_ane.manifest import Shard
from pytest_ane.probes.error_budget import ErrorBudget
from pytest_ane.project.budgets import built_budget
from pytest_ane.project.project import OpenShard, Project, read_project
from pytest_ane.report.verdict import reasons


@dataclass(frozen=True)
class Seeded(OpenShard):
    """A shard with a seed of its own, and its program before compression, converted once."""

    plain: Path

    def budget(self) -> ErrorBudget:
        """Measured now: seeds other than the manifest's are not in the cache."""
        package, exact = self.artifact, CpuBackend("float32")
        cases = partial(self.project.cases, self.shard, package, exact)
        model = self.project.model(self.shard.model)
        return built_budget(self.project.cache, model, self.shard, package.path, cases, self.plain)


def verdicts(project: Project, shard: Shard, seeds: int) -> Iterator[Verdict]:
    """Of one shard, seed after seed."""
    gate = GATES["fidelity"]
    plain = converted_package(shard, project.model(shard.model).language_model)
    for seed in range(1, seeds + 1):
        probes = shard.probes.model_copy(update={"seed": seed})
        seeded = shard.model_copy(update={"probes": probes})
        measurement = gate.measure(Seeded(project, seeded, plain))
        yield gate.judge(measurement, gate.policy(seeded.policy), seeded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--shards", default="", help="ids, a regular expression")
    parser.add_argument("--seeds", type=int, default=40, help="from 1 to this")
    options = parser.parse_args()
    for shard in read_project(options.manifest, None).shards:
        if not re.search(options.shards, shard.id):
            continue
        red, lowest, start = 0, 1.0, time.process_time()
        # Recordings of many seeds are not for the user's cache.
        with (
            TemporaryDirectory() as cache,
            read_project(options.manifest, Path(cache)).use() as project,
        ):
            for seed, verdict in enumerate(verdicts(project, shard, options.seeds), 1):
                names = ("cosine.min", "cosine.seeded")
                cosines = [f.value for f in verdict.figures if f.name in names]
                lowest = min([lowest, *map(float, cosines)])
                if verdict.status != "passed":
                    red += 1
                    print(f"  seed {seed}: {reasons(verdict)[0]}")
        seconds = (time.process_time() - start) / options.seeds
        print(
            f"{shard.qualified}: {red} of {options.seeds} seeds red, lowest cosine {lowest:.4f}; "
            f"{seconds:.1f} s of processor time a seed",
            flush=True,
        )


if __name__ == "__main__":
    main()
