"""Error budgets of all shards of manifests: what the bounds of the fidelity gate are derived from.

python -m benchmarks.error_budget shards.toml examples/gemma4.toml --shards L00,L00.attn

Shards that are not in the cache are built. For each model: the worst and the median of each error,
greatest and root mean square, and how the total compares with the root of the squares.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import median

from pytest_ane.probes.error_budget import ErrorBudget, run_cases, total_error
from pytest_ane.project.project import Project, read_project


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifests", nargs="*", type=Path, default=[Path("shards.toml")])
    parser.add_argument("--shards", help="ids, separated by commas; all by default")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    print("| model | shards | algebra | rms | rounding | rms | compression, rms | total |")
    print("|---|---|---|---|---|---|---|---|")
    for manifest in options.manifests:
        project = read_project(manifest, options.cache)
        with project.use():
            _print(project, options.shards.split(",") if options.shards else None)


def _print(project: Project, ids: list[str] | None) -> None:
    budgets: list[tuple[ErrorBudget, float]] = []
    for shard in project.shards:
        if ids is None or shard.id in ids:
            artifact = project.artifact(shard)
            budget = project.budget(shard, artifact)
            assert isinstance(budget, ErrorBudget), budget
            cases = project.cases(shard, artifact)
            total = total_error(cases, list(run_cases(project.backend.load(artifact.path), cases)))
            budgets.append((budget, total.rms))
    name = project.shards[0].model
    algebra = [b.algebra for b, _ in budgets if b.algebra is not None]
    rounding = [b.rounding for b, _ in budgets]
    compression = [0.0 if b.compression is None else b.compression.rms for b, _ in budgets]
    ratios = [
        total / math.hypot(a.rms, r.rms, c)
        for (_, total), a, r, c in zip(budgets, algebra, rounding, compression, strict=True)
    ]
    columns = (
        _worst([e.greatest for e in algebra]), _worst([e.rms for e in algebra]),
        _worst([e.greatest for e in rounding]), _worst([e.rms for e in rounding]),
        _worst(compression), f"{min(ratios):.2f} to {max(ratios):.2f}",
    )  # fmt: skip
    print(f"| {name} | {len(budgets)} | {' | '.join(columns)} |", flush=True)


def _worst(values: list[float]) -> str:
    return f"{max(values):.2g} (median {median(values):.2g})"


if __name__ == "__main__":
    main()
