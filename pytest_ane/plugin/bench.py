"""Benchmarks of shards: their fixtures, when they run, and what pytest-benchmark's options mean.

Like the entry point, this imports the standard library and pytest alone. Fixtures ask for
`benchmark` last: it complains if it is not used, as where a shard cannot be built.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.plugin import bench_options
from pytest_ane.plugin.bench_options import FILE, asked, compared, recording
from pytest_ane.plugin.options import wanted
from pytest_ane.project import suite

if TYPE_CHECKING:
    from pytest_ane.build import Artifact
    from pytest_ane.core.verdict import Verdict
    from pytest_ane.gates.throughput.speed import Speed
    from pytest_ane.manifest import Shard
    from pytest_ane.plugin.stopwatch import Stopwatch
    from pytest_ane.plugin.workspace import Workspace
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
    from pytest_ane.plugin import regression, workspace

    space = workspace.of(request.config)
    return lambda speed: regression.judged(request.node, space, speed, benchmark)


def ignored(path: Path, config: pytest.Config) -> bool:
    """Whether a file is our benchmarks', in a run that is not for them."""
    if path.name != FILE or not wanted(config) or asked(config):
        return False
    return path.parent in (suite.shipped(), suite.in_use(config.rootpath))


def drop_unasked(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect benchmarks that neither `-m` nor a file named on the command line asks for.

    A marker of this name is not ours alone: a test without our fixtures is somebody else's.
    """
    if not wanted(config) or asked(config):
        return
    dropped = [
        item
        for item in items
        if item.get_closest_marker("bench")
        and _FIXTURES & set(getattr(item, "fixturenames", ()))
        and not item.session.isinitpath(item.path)
    ]
    if dropped:
        items[:] = [item for item in items if item not in set(dropped)]
        config.hook.pytest_deselected(items=dropped)


def use_processor_time(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the executor be timed by its one thread's processor time, unless a timer was chosen.

    What else runs on the machine then costs little; on a device, wall time is all there is.
    """
    given = [*config.invocation_params.args, *config.getini("addopts")]
    if not wanted(config) or any(arg.startswith("--benchmark-timer") for arg in given):
        return
    from pytest_ane.plugin import workspace

    on_device = workspace.of(config).backend_name != "cpu"
    if on_device or os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        return
    for item in items:
        if _TIMED & set(getattr(item, "fixturenames", ())):
            own = item.get_closest_marker("benchmark")
            options = {"timer": time.process_time, **(own.kwargs if own else {})}
            item.add_marker(pytest.mark.benchmark(**options), append=False)


def check(config: pytest.Config) -> None:
    """See that benchmarks can be had as they were asked for.

    Raises:
        pytest.UsageError: they cannot.
    """
    if not asked(config):
        return
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "-m bench: pytest-benchmark, which times, is switched off; leave -p no:benchmark out."
        )
    if config.getoption("benchmark_compare_fail") and not compared(config):
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
    """Before pytest-benchmark is configured: name its folder, and see to the end of the run."""
    if not asked(config):
        return
    from pytest_ane.plugin import regression
    from pytest_ane.plugin.bench_report import BenchReport

    _no_errors_of_warnings(config)
    regression.use_baselines(config, space)
    bench_options.check_storage(config, recording=recording(config))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(BenchReport(config), "ane-bench")


def _no_errors_of_warnings(config: pytest.Config) -> None:
    """Let pytest-benchmark warn, such as of no stored run, where a project makes errors of that.

    It does so while pytest is set up, where an error is a traceback; the verdict says it anyway.
    """
    from pytest_benchmark.logger import PytestBenchmarkWarning

    warnings.filterwarnings("default", category=PytestBenchmarkWarning)
    name = f"{PytestBenchmarkWarning.__module__}.{PytestBenchmarkWarning.__qualname__}"
    config.addinivalue_line("filterwarnings", f"default::{name}")


def _stopwatch(request: pytest.FixtureRequest, benchmark: Any) -> Stopwatch:
    from pytest_ane.plugin import workspace
    from pytest_ane.plugin.stopwatch import Stopwatch

    return Stopwatch(benchmark, request.node, workspace.of(request.config))
