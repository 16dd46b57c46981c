"""A speed held against the policy, and against the stored run of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pytest_ane.plugin import bench
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.throughput.baseline import Baseline, Missing, find
from pytest_ane.throughput.judge import judge
from pytest_ane.throughput.speed import KEY, Speed
from pytest_ane.throughput.storage import STORAGE, storage_of
from pytest_ane.verdict import Verdict


def judged(config: pytest.Config, space: Workspace, speed: Speed, benchmark: Any) -> Verdict:
    """The verdict on a speed, which is kept for the table.

    Raises:
        UnprovenError: a stored run that would be the baseline is damaged.
    """
    policy = space.policy_of(speed.subject).throughput
    compared = bench.compared(config)
    looks = compared or policy.max_regression is not None
    verdict = judge(
        speed,
        _baseline(config, space, speed) if looks else None,
        policy,
        recording=bench.recording(config),
        compared=compared,
    )
    if worse := tuple(_worse(config, benchmark)):
        verdict = replace(verdict, status="failed", reasons=(*verdict.reasons, *worse))
    benchmark.extra_info[KEY]["status"] = verdict.status
    space.speeds.append((speed, verdict))
    return verdict


def use_baselines(config: pytest.Config, space: Workspace) -> None:
    """Let pytest-benchmark keep runs where the manifest says, if that is one place."""
    models = {shard.model for shard in space.shards}
    folders = {space.manifest.model_of(name).baselines for name in models}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is not None and config.getoption("benchmark_storage") == STORAGE:
        config.option.benchmark_storage = f"file://{folder}"


def _baseline(config: pytest.Config, space: Workspace, speed: Speed) -> Baseline | Missing:
    default = config.getoption("benchmark_storage") == STORAGE
    folder = space.manifest.model_of(speed.subject.partition(":")[0]).baselines
    storage = storage_of(bench.session(config), folder if default else None)
    given = config.getoption("benchmark_compare")
    return find(storage, speed, given if isinstance(given, str) else None)


def _worse(config: pytest.Config, benchmark: Any) -> Iterator[str]:
    """What `--benchmark-compare-fail` says, as pytest-benchmark will at the end of the run."""
    session = bench.session(config)
    for path, stored in session.compared_mapping.items():
        for limit in session.compare_fail or ():
            then = stored.get(benchmark.fullname)
            if then is not None and (why := limit.fails(benchmark.stats, then["stats"])):
                yield f"--benchmark-compare-fail: {why}, against {path}."
