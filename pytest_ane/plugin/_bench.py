"""Benchmarks of shards: their fixtures, when they run, and what pytest-benchmark's options mean.

Like the entry point, this imports the standard library and pytest alone. Fixtures request
`benchmark` last: it complains if it is not used, as where a shard cannot be built.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.plugin import _bench_options as bench_options
from pytest_ane.plugin import _compare as compare
from pytest_ane.plugin._bench_options import FILE, is_recording, is_requested, is_wanted
from pytest_ane.plugin._items import subject_of
from pytest_ane.plugin._options import wanted
from pytest_ane.project import suite

if TYPE_CHECKING:
    from pytest_ane.gates.throughput.speed import Speed
    from pytest_ane.gates.verdict import Verdict
    from pytest_ane.make import Artifact
    from pytest_ane.manifest import Shard
    from pytest_ane.plugin._stopwatch import Stopwatch
    from pytest_ane.plugin._workspace import Workspace
    from pytest_ane.project.stack import Stack

_FIXTURES = {"ane_shard", "ane_chain"}
_TIMED = {"ane_load_benchmark", "ane_shard_benchmark", "ane_decode_benchmark"}


@pytest.fixture
def ane_load_benchmark(
    request: pytest.FixtureRequest, ane_shard: Shard, ane_artifact: Artifact, benchmark: Any
) -> Callable[[], Speed]:
    """`ane_load_benchmark()` times loading the shard up to its first prediction."""
    watch = _stopwatch(request, benchmark)
    return lambda: watch.used(lambda: watch.load(ane_shard, ane_artifact))


@pytest.fixture
def ane_shard_benchmark(
    request: pytest.FixtureRequest, ane_shard: Shard, ane_artifact: Artifact, benchmark: Any
) -> Callable[..., Speed]:
    """`ane_shard_benchmark(tokens)` times one call of the shard, 1 to `"max"` positions."""
    watch = _stopwatch(request, benchmark)
    return lambda tokens=1: watch.used(lambda: watch.call(ane_shard, ane_artifact, tokens))


@pytest.fixture
def ane_decode_benchmark(
    request: pytest.FixtureRequest, ane_chain: Stack, benchmark: Any
) -> Callable[..., Speed]:
    """`ane_decode_benchmark(prompt=None, count=32)` times greedy decoding through the chain."""
    watch = _stopwatch(request, benchmark)
    return lambda prompt=None, **more: watch.used(lambda: watch.decode(ane_chain, prompt, **more))


@pytest.fixture
def ane_against_baseline(
    request: pytest.FixtureRequest, benchmark: Any
) -> Callable[[Speed], Verdict]:
    """`ane_against_baseline(speed)` judges it by the policy and the stored run of this machine."""
    from pytest_ane.plugin import _workspace as workspace

    space = workspace.of(request.config)
    return lambda speed: compare.judged(request.node, space, speed, benchmark)


def is_ignored(path: Path, config: pytest.Config) -> bool:
    """Whether a path has no benchmark that this run is for."""
    if (held := config.stash.get(compare.HELD, None)) is not None:
        if path.parent == suite.shipped():
            path = config.rootpath / suite.FOLDER / path.name
        files = (config.rootpath / name.partition("::")[0] for name in held)
        return not any(file.is_relative_to(path) for file in files)
    if path.name != FILE or not wanted(config) or is_wanted(config):
        return False
    return path in (suite.shipped() / FILE, suite.in_use(config.rootpath, FILE))


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect benchmarks that neither `-m`, an option nor a named file asks for.

    A marker of this name is not ours alone: a test without our fixtures is somebody else's. Where a
    stored run selects, everything goes that it does not hold.
    """
    held = config.stash.get(compare.HELD, None)

    def is_dropped(item: pytest.Item) -> bool:
        if held is not None:
            return item.nodeid not in held
        ours = item.get_closest_marker("bench") and _FIXTURES & _fixtures(item)
        return bool(ours) and not item.session.isinitpath(item.path)

    if held is None and (not wanted(config) or is_wanted(config)):
        return
    if dropped := [item for item in items if is_dropped(item)]:
        items[:] = [item for item in items if item not in set(dropped)]
        config.hook.pytest_deselected(items=dropped)


def use_processor_time(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the executor be timed by its one thread's processor time, unless a timer was chosen.

    What else runs on the machine then costs little; on a device, wall time is all there is.
    """
    if not wanted(config) or bench_options.is_given(config, "--benchmark-timer"):
        return
    from pytest_ane.plugin import _workspace as workspace

    on_device = workspace.of(config).backend_name != "cpu"
    if on_device or os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return
    for item in items:
        if _TIMED & _fixtures(item):
            own = item.get_closest_marker("benchmark")
            options = {"timer": time.process_time, **(own.kwargs if own else {})}
            item.add_marker(pytest.mark.benchmark(**options), append=False)


def require_baseline(session: pytest.Session) -> None:
    """Refuse a run that asks for a comparison and has nothing to compare with.

    Raises:
        UnprovenError: with the sentence.
    """
    config = session.config
    # Only workers of xdist know their tests, and none of them times any.
    spread = hasattr(config, "workerinput") or config.pluginmanager.hasplugin("dsession")
    if spread or config.option.collectonly:
        return
    if is_requested(config):
        from pytest_ane.plugin import _workspace as workspace

        timed = [item for item in session.items if _TIMED & _fixtures(item)]
        if any("benchmark" in _fixtures(item) for item in session.items if item not in timed):
            return  # pytest-benchmark compares others.
        subjects = {subject_of(i) for i in timed if isinstance(i, pytest.Function)}
        compare.require_baseline(config, workspace.of(config), subjects)


def check(config: pytest.Config) -> None:
    """Check pytest-benchmark's options.

    Raises:
        pytest.UsageError: one is wrong.
    """
    if not is_wanted(config):
        return
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "-m bench: pytest-benchmark, which times, is switched off; leave -p no:benchmark out."
        )
    if config.getoption("benchmark_compare_fail") and not bench_options.is_compared(config):
        raise pytest.UsageError(
            "--benchmark-compare-fail compares with a stored run; add --benchmark-compare."
        )
    if config.getoption("benchmark_histogram") and find_spec("pygal") is None:
        raise pytest.UsageError(
            "--benchmark-histogram draws with pygal, which is not installed: "
            "pip install 'pytest-benchmark[histogram]'."
        )
    bench_options.check(config)


def prepare(config: pytest.Config, space: Workspace) -> None:
    """Before pytest-benchmark is configured: name its folder, and register the report."""
    if not is_wanted(config):
        return
    from pytest_ane.plugin._stopwatch import BenchReport

    compare.quiet_warnings(config)
    compare.use_baselines(config, space)
    bench_options.check_storage(config, recording=is_recording(config))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(BenchReport(config), "ane-bench")


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _stopwatch(request: pytest.FixtureRequest, benchmark: Any) -> Stopwatch:
    from pytest_ane.plugin import _workspace as workspace
    from pytest_ane.plugin._stopwatch import Stopwatch

    return Stopwatch(benchmark, request.node, workspace.of(request.config))
