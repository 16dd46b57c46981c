"""A speed held against the policy, and against the stored run of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.logger import Logger
from pytest_benchmark.utils import get_machine_id, load_storage

from pytest_ane.plugin import bench
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.throughput.baseline import Baseline, Missing, find
from pytest_ane.throughput.judge import judge
from pytest_ane.throughput.speed import KEY, Speed
from pytest_ane.throughput.storage import check, storage_of
from pytest_ane.verdict import Verdict

_DEFAULT = "file://./.benchmarks"
"""pytest-benchmark's own `--benchmark-storage`."""


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


def prepare(config: pytest.Config, space: Workspace) -> None:
    """Let pytest-benchmark keep its runs where the manifest says, and look at what it will load.

    Raises:
        UnprovenError: a run that `--benchmark-compare` asks for is damaged, or there is none.
    """
    names = {shard.model for shard in space.shards}
    folders = {space.manifest.model_of(name).baselines for name in names}
    if len(folders) == 1 and config.getoption("benchmark_storage") == _DEFAULT:
        folder = folders.pop()
        config.option.benchmark_storage = f"file://{folder}" if folder else _DEFAULT
    if bench.compared(config):
        check(storage_of(SimpleNamespace(storage=_storage(config))), _which(config))


def _storage(config: pytest.Config) -> Any:
    """What pytest-benchmark will open a moment later."""
    return load_storage(  # type: ignore[no-untyped-call]
        config.getoption("benchmark_storage"),
        logger=Logger(Logger.QUIET, config),  # type: ignore[no-untyped-call]
        default_machine_id=get_machine_id(),  # type: ignore[no-untyped-call]
        netrc=config.getoption("benchmark_netrc"),
    )


def _which(config: pytest.Config) -> str | None:
    """The run that `--benchmark-compare` names; None for the newest."""
    given = config.getoption("benchmark_compare")
    return given if isinstance(given, str) else None


def _baseline(config: pytest.Config, space: Workspace, speed: Speed) -> Baseline | Missing:
    folder = space.manifest.model_of(speed.subject.partition(":")[0]).baselines
    default = config.getoption("benchmark_storage") == _DEFAULT
    storage = storage_of(bench.session(config), folder if default else None)
    return find(storage, speed, _which(config))


def _worse(config: pytest.Config, benchmark: Any) -> Iterator[str]:
    """What `--benchmark-compare-fail` says, as pytest-benchmark will at the end of the run."""
    session = bench.session(config)
    for path, stored in session.compared_mapping.items():
        for limit in session.compare_fail or ():
            then = stored.get(benchmark.fullname)
            if then is not None and (why := limit.fails(benchmark.stats, then["stats"])):
                yield f"--benchmark-compare-fail: {why}, against {path}."
