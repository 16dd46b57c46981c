"""`--benchmark-compare`: which stored runs a run is compared with, and the verdicts on speeds.

On the command line the option asks for a comparison: without shards it selects those of the newest
stored run of this machine, and a run that compares nothing is a usage error. Like the entry point,
this imports the standard library and pytest alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.plugin import _options as options
from pytest_ane.plugin._bench_options import COMPARE, is_compared, is_recording, is_requested
from pytest_ane.plugin._options import wanted
from pytest_ane.project import process as threads

if TYPE_CHECKING:
    from pytest_ane.gates.throughput.speed import Speed
    from pytest_ane.gates.throughput.stored import Storage, StoredRun
    from pytest_ane.gates.verdict import Verdict
    from pytest_ane.manifest import Manifest
    from pytest_ane.plugin._workspace import Workspace

HELD = pytest.StashKey[frozenset[str]]()
"""Node ids of the stored run's benchmarks, where that run selects what is measured."""


def select(config: pytest.Config, *, named: bool) -> None:
    """Without a selection, select the shards that the newest stored run of this machine holds.

    A project without a manifest, and tests that are named, are pytest-benchmark's own business.

    Args:
        config: the run's.
        named: whether paths were named that are less than the whole project.

    Raises:
        AneError: the manifest is wrong, or no run of this machine has any of its shards.
    """
    file = options.path(config, "ane_manifest") or config.rootpath / "shards.toml"
    if not is_compared(config) or not file.is_file():
        return
    quiet_warnings(config)
    if wanted(config) or not is_requested(config) or named:
        return
    threads.choose()
    from pytest_ane.backends import get_backend
    from pytest_ane.gates.throughput.machine import identity
    from pytest_ane.make import Cache
    from pytest_ane.project.entries import read_manifest

    manifest = read_manifest(file)
    backend = get_backend(
        options.backend(config),
        cache=Cache(options.path(config, "ane_cache")),
        units=options.compute_units(config),
    )
    every = {shard.qualified for shard in manifest.shards} | {m.name for m in manifest.models}
    runs = _newest(config, manifest, identity(backend), every)
    held = {speed.subject for run in runs for speed in run.speeds.values()}
    chosen = [s.qualified for s in manifest.shards if {s.qualified, s.model} & held]
    config.option.ane_shards = "all" if len(chosen) == len(manifest.shards) else ",".join(chosen)
    config.stash[HELD] = frozenset(name for run in runs for name in run.names)


def refuse_damaged(config: pytest.Config) -> None:
    """Refuse a stored run that is damaged or does not exist, before pytest-benchmark loads it.

    It skips a run that is no JSON for an older one, and ends in a traceback over other JSON.

    Raises:
        UnprovenError: with the sentence.
    """
    if not is_compared(config):
        return
    from pytest_ane.gates.throughput.stored import files_of, open_storage, read_stored

    which = _which(config)
    files = files_of(open_storage(config.getoption("benchmark_storage")), which)
    for file in files if which else files[-1:]:
        read_stored(file)


def require_baseline(config: pytest.Config, space: Workspace, subjects: Collection[str]) -> None:
    """Refuse a run that asks for a comparison and can compare nothing, before it is measured.

    Args:
        config: the run's.
        space: its workspace.
        subjects: shards and models of the benchmarks that were collected.

    Raises:
        UnprovenError: there is no benchmark, or no stored run of this machine has any of them.
    """
    if not subjects:
        raise UnprovenError(
            f"{COMPARE}: no benchmark is selected, so nothing would be compared; give -m bench, or "
            "leave -m and -k out."
        )
    _newest(config, space.manifest, space.identity, subjects)


def judged(item: pytest.Item, space: Workspace, speed: Speed, benchmark: Any) -> Verdict:
    """The verdict on a speed, which is kept for the table; a suspected change is confirmed first.

    Raises:
        UnprovenError: a stored run that would be the baseline is damaged.
    """
    from pytest_ane.gates.throughput import THROUGHPUT, Throughput, Timing, judge
    from pytest_ane.gates.throughput.baseline import find
    from pytest_ane.gates.throughput.speed import KEY
    from pytest_ane.gates.verdict import Finding
    from pytest_ane.plugin._stopwatch import CONFIRM

    config, policy = item.config, space.policy_of(speed.subject).throughput
    wanted = is_compared(config) or policy.max_regression is not None
    baselines = space.manifest.model_of(speed.subject.partition(":")[0]).baselines
    baseline = find(_open(config, baselines), speed, _which(config)) if wanted else None
    timed = Throughput(speed, baseline, is_recording(config), is_compared(config))
    measurement = THROUGHPUT.measure(Timing(timed, policy, item.stash.get(CONFIRM, None)))
    speed = measurement.speed
    verdict = judge(measurement, policy, speed.subject)
    worse = tuple(Finding("failed", reason) for reason in _compare_fail(config, benchmark))
    verdict = replace(verdict, findings=(*worse, *verdict.findings))
    benchmark.extra_info[KEY] = speed.to_json() | {"status": verdict.status}
    space.speeds.append((speed, verdict))
    return verdict


def use_baselines(config: pytest.Config, space: Workspace) -> None:
    """Let pytest-benchmark store runs where the manifest says, if that is one place."""
    from pytest_ane.gates.throughput.stored import STORAGE

    models = {shard.model for shard in space.shards}
    folders = {space.manifest.model_of(name).baselines for name in models}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is not None and config.getoption("benchmark_storage") == STORAGE:
        config.option.benchmark_storage = f"file://{folder}"


def quiet_warnings(config: pytest.Config) -> None:
    """Let pytest-benchmark warn, such as of no stored run, where a project makes errors of that.

    It does so while pytest is set up, where an error is a traceback; the verdict says it anyway.
    """
    from pytest_benchmark.logger import PytestBenchmarkWarning

    warnings.filterwarnings("default", category=PytestBenchmarkWarning)
    name = f"{PytestBenchmarkWarning.__module__}.{PytestBenchmarkWarning.__qualname__}"
    config.addinivalue_line("filterwarnings", f"default::{name}")


def _newest(
    config: pytest.Config,
    manifest: Manifest,
    identity: Mapping[str, str],
    subjects: Collection[str],
) -> list[StoredRun]:
    """The newest stored run with any of these shards and models, of each folder of runs.

    Raises:
        UnprovenError: there is none, or a damaged one.
    """
    from pytest_ane.gates.throughput.baseline import Missing, newest_of
    from pytest_ane.gates.throughput.stored import RECORD

    folders = {manifest.model_of(name.partition(":")[0]).baselines for name in subjects}
    newest = [
        newest_of(_open(config, folder), identity, subjects, _which(config)) for folder in folders
    ]
    if runs := [run for run in newest if not isinstance(run, Missing)]:
        return runs
    why = next(run.why for run in newest if isinstance(run, Missing))
    raise UnprovenError(f"{COMPARE}: {why} Record one with: {RECORD}")


def _open(config: pytest.Config, baselines: Path | None) -> Storage:
    """Where runs are stored: the option's folder, else a model's, else pytest-benchmark's own."""
    from pytest_ane.gates.throughput.stored import STORAGE, open_storage

    uri = str(config.getoption("benchmark_storage"))
    return open_storage(uri, baselines if uri == STORAGE else None)


def _which(config: pytest.Config) -> str | None:
    """The run that the option names; None for the newest."""
    which = config.getoption("benchmark_compare", None)
    return which if isinstance(which, str) else None


def _compare_fail(config: pytest.Config, benchmark: Any) -> Iterator[str]:
    """The sentences of `--benchmark-compare-fail`, as pytest-benchmark finds at the end."""
    session = config._benchmarksession  # type: ignore[attr-defined]
    for path, stored in session.compared_mapping.items():
        for limit in session.compare_fail or ():
            then = stored.get(benchmark.fullname)
            if then is not None and (why := limit.fails(benchmark.stats, then["stats"])):
                yield f"--benchmark-compare-fail: {why}, against {path}"
