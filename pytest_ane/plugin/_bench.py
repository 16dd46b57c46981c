"""Benchmarks of shards: their fixtures, when they run, what pytest-benchmark's options mean.

Like the entry point, this imports the standard library and pytest alone. Fixtures request
`benchmark` last: it complains if it is not used, as where a shard cannot be built.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.plugin import _options
from pytest_ane.plugin._items import subject_of, workspace_of
from pytest_ane.plugin._options import COMPARE, is_compared, is_given, is_requested, wanted
from pytest_ane.project import process, suite

if TYPE_CHECKING:
    from pytest_ane.gates.throughput.speed import Speed
    from pytest_ane.gates.throughput.stored import Storage, StoredRun
    from pytest_ane.gates.verdict import Verdict
    from pytest_ane.make import Artifact
    from pytest_ane.manifest import Manifest, Shard
    from pytest_ane.plugin._stopwatch import Stopwatch
    from pytest_ane.plugin._workspace import Workspace
    from pytest_ane.project.stack import Stack

FILE = "test_throughput.py"
"""Our benchmarks among the gates."""
HELD = pytest.StashKey[frozenset[str]]()
"""Node ids of the stored run's benchmarks, where that run selects what is measured."""
_FIXTURES = {"ane_shard", "ane_chain"}
_TIMED = {"ane_load_benchmark", "ane_shard_benchmark", "ane_decode_benchmark"}


@pytest.fixture
def ane_load_benchmark(
    request: pytest.FixtureRequest, ane_shard: Shard, ane_artifact: Artifact, benchmark: Any
) -> Callable[[], Speed]:
    """`ane_load_benchmark()` times loading the shard up to its first prediction."""
    watch = _stopwatch(request, benchmark)
    return lambda: watch.load(ane_shard, ane_artifact)


@pytest.fixture
def ane_shard_benchmark(
    request: pytest.FixtureRequest, ane_shard: Shard, ane_artifact: Artifact, benchmark: Any
) -> Callable[..., Speed]:
    """`ane_shard_benchmark(tokens)` times one call of the shard, 1 to `"max"` positions."""
    watch = _stopwatch(request, benchmark)
    return lambda tokens=1: watch.call(ane_shard, ane_artifact, tokens)


@pytest.fixture
def ane_decode_benchmark(
    request: pytest.FixtureRequest, ane_chain: Stack, benchmark: Any
) -> Callable[..., Speed]:
    """`ane_decode_benchmark(prompt=None, count=32)` times greedy decoding through the chain."""
    watch = _stopwatch(request, benchmark)
    return lambda prompt=None, **more: watch.decode(ane_chain, prompt, **more)


@pytest.fixture
def ane_against_baseline(
    request: pytest.FixtureRequest, benchmark: Any
) -> Callable[[Speed], Verdict]:
    """`ane_against_baseline(speed)` judges it by the policy and the stored run of this machine."""
    space = workspace_of(request.config)
    return lambda speed: judged(request.node, space, speed, benchmark)


def is_ignored(path: Path, config: pytest.Config) -> bool:
    """Whether a path has no benchmark that this run is for."""
    if (held := config.stash.get(HELD, None)) is not None:
        if path.parent == suite.shipped():
            path = config.rootpath / suite.FOLDER / path.name
        files = (config.rootpath / name.partition("::")[0] for name in held)
        return not any(file.is_relative_to(path) for file in files)
    if path.name != FILE or not wanted(config) or is_wanted(config):
        return False
    return path in (suite.shipped() / FILE, suite.in_use(config.rootpath, FILE))


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect benchmarks that nothing asks for, and what a stored run that selects has not."""
    held = config.stash.get(HELD, None)

    def is_dropped(item: pytest.Item) -> bool:
        if held is not None:
            return item.nodeid not in held
        ours = item.get_closest_marker("bench") and _FIXTURES & _fixtures(item)
        return bool(ours) and not item.session.isinitpath(item.path)

    if held is None and (not wanted(config) or is_wanted(config)):
        return
    if dropped := [item for item in items if is_dropped(item)]:
        items[:] = [item for item in items if not is_dropped(item)]
        config.hook.pytest_deselected(items=dropped)


def use_processor_time(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Time the executor by its one thread's processor time: what else runs costs little then."""
    if not wanted(config) or is_given(config, "--benchmark-timer"):
        return
    if workspace_of(config).backend_name != "cpu":
        return
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return
    for item in items:
        if _TIMED & _fixtures(item):
            own = item.get_closest_marker("benchmark")
            options = {"timer": time.process_time, **(own.kwargs if own else {})}
            item.add_marker(pytest.mark.benchmark(**options), append=False)


def require_baseline(session: pytest.Session) -> None:
    """Refuse a run that asks for a comparison and has nothing to compare with."""
    config = session.config
    # Only workers of xdist know their tests, and none of them times any.
    spread = hasattr(config, "workerinput") or config.pluginmanager.hasplugin("dsession")
    if spread or config.option.collectonly or not is_requested(config):
        return
    timed = [item for item in session.items if _TIMED & _fixtures(item)]
    if any("benchmark" in _fixtures(item) for item in session.items if item not in timed):
        return  # pytest-benchmark compares others.
    if not (subjects := {subject_of(i) for i in timed if isinstance(i, pytest.Function)}):
        raise UnprovenError(
            f"{COMPARE}: no benchmark is selected, so nothing would be compared; give -m bench, or "
            "leave -m and -k out."
        )
    space = workspace_of(config)
    _newest(config, space.manifest, space.identity, subjects)


def prepare(config: pytest.Config, space: Workspace) -> None:
    """Name pytest-benchmark's folder and report; `UsageError` if its options time nothing."""
    if not is_wanted(config):
        return
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "-m bench: pytest-benchmark, which times, is switched off; leave -p no:benchmark out."
        )
    if config.getoption("benchmark_compare_fail") and not is_compared(config):
        raise pytest.UsageError(
            "--benchmark-compare-fail compares with a stored run; add --benchmark-compare."
        )
    from pytest_ane.gates.throughput.stored import STORAGE
    from pytest_ane.plugin._stopwatch import BenchReport

    quiet_warnings(config)
    models = {shard.model for shard in space.shards}
    folders = {space.manifest.model_of(name).baselines for name in models}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is not None and config.getoption("benchmark_storage") == STORAGE:
        config.option.benchmark_storage = f"file://{folder}"
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(BenchReport(config), "ane-bench")


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _stopwatch(request: pytest.FixtureRequest, benchmark: Any) -> Stopwatch:
    from pytest_ane.plugin._stopwatch import Stopwatch

    return Stopwatch(benchmark, request.node, workspace_of(request.config))


def is_wanted(config: pytest.Config) -> bool:
    """Whether a run is for benchmarks: with shards, and by `-m`, an option or our file."""
    only = bool(config.getoption("benchmark_only", False))
    named = any(f"/{FILE}" in f"/{arg}" for arg in config.invocation_params.args)
    chosen = "bench" in config.option.markexpr or only or named or is_requested(config)
    return wanted(config) and chosen


def select(config: pytest.Config, *, named: bool) -> None:
    """Without a selection, select the newest stored run's shards; `AneError` where it has none."""
    file = _options.manifest_file(config)
    if not is_compared(config) or not file.is_file():
        return
    quiet_warnings(config)
    if wanted(config) or not is_requested(config) or named:
        return
    process.choose()
    from pytest_ane.backends import get_backend
    from pytest_ane.gates.throughput.machine import identity
    from pytest_ane.make import Cache
    from pytest_ane.project.entries import read_manifest

    manifest = read_manifest(file)
    backend = get_backend(
        _options.backend(config),
        cache=Cache(_options.path(config, "ane_cache")),
        units=_options.compute_units(config),
    )
    every = {shard.qualified for shard in manifest.shards} | {m.name for m in manifest.models}
    runs = _newest(config, manifest, identity(backend), every)
    held = {speed.subject for run in runs for speed in run.speeds.values()}
    chosen = [s.qualified for s in manifest.shards if {s.qualified, s.model} & held]
    config.option.ane_shards = "all" if len(chosen) == len(manifest.shards) else ",".join(chosen)
    config.stash[HELD] = frozenset(name for run in runs for name in run.names)


def refuse_damaged(config: pytest.Config) -> None:
    """Refuse a stored run that is damaged or absent; pytest-benchmark would skip it, or crash."""
    if not is_compared(config):
        return
    from pytest_ane.gates.throughput.stored import files_of, open_storage, read_stored

    which = _which(config)
    files = files_of(open_storage(config.getoption("benchmark_storage")), which)
    for file in files if which else files[-1:]:
        read_stored(file)


def judged(item: pytest.Item, space: Workspace, speed: Speed, benchmark: Any) -> Verdict:
    """The verdict on a speed, kept for the table; a suspected change is confirmed first."""
    from pytest_ane.gates.throughput import THROUGHPUT, Throughput, Timing, judge
    from pytest_ane.gates.throughput.baseline import find
    from pytest_ane.gates.throughput.speed import KEY
    from pytest_ane.gates.verdict import Finding
    from pytest_ane.plugin._stopwatch import CONFIRM

    config, policy = item.config, space.policy_of(speed.subject).throughput
    wanted = is_compared(config) or policy.max_regression is not None
    baselines = space.manifest.model_of(speed.subject.partition(":")[0]).baselines
    baseline = find(_open(config, baselines), speed, _which(config)) if wanted else None
    stores = any(config.getoption(f"benchmark_{how}", None) for how in ("save", "autosave"))
    timed = Throughput(speed, baseline, stores, is_compared(config))
    measurement = THROUGHPUT.measure(Timing(timed, policy, item.stash.get(CONFIRM, None)))
    speed = measurement.speed
    verdict = judge(measurement, policy, speed.subject)
    worse = tuple(Finding("failed", reason) for reason in _compare_fail(config, benchmark))
    verdict = replace(verdict, findings=(*worse, *verdict.findings))
    benchmark.extra_info[KEY] = speed.to_json() | {"status": verdict.status}
    space.speeds.append((speed, verdict))
    return verdict


def quiet_warnings(config: pytest.Config) -> None:
    """Let pytest-benchmark warn while pytest is set up, where an error would be a traceback."""
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
    """The newest stored run of each folder with any of these subjects; `UnprovenError` for none."""
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
    from pytest_ane.gates.throughput.stored import STORAGE, open_storage

    uri = str(config.getoption("benchmark_storage"))
    return open_storage(uri, baselines if uri == STORAGE else None)


def _which(config: pytest.Config) -> str | None:
    which = config.getoption("benchmark_compare", None)
    return which if isinstance(which, str) else None


def _compare_fail(config: pytest.Config, benchmark: Any) -> Iterator[str]:
    session = config._benchmarksession  # type: ignore[attr-defined]
    for path, stored in session.compared_mapping.items():
        for limit in session.compare_fail or ():
            then = stored.get(benchmark.fullname)
            if then is not None and (why := limit.fails(benchmark.stats, then["stats"])):
                yield f"--benchmark-compare-fail: {why}, against {path}"
