"""The pytest plugin: hooks only, each handing over to the module that knows.

This module and what it imports at the top need the standard library and pytest alone, so that a
run without ANE options pays nothing for having the plugin installed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.mlprogram.errors import AneError, UnprovenError
from pytest_ane.plugin import (
    _bench as bench,
)
from pytest_ane.plugin import (
    _collection as collection,
)
from pytest_ane.plugin import (
    _compare as compare,
)
from pytest_ane.plugin import (
    _options as options,
)
from pytest_ane.plugin._bench import (
    ane_against_baseline,
    ane_decode_benchmark,
    ane_load_benchmark,
    ane_shard_benchmark,
)
from pytest_ane.plugin._fixtures import (
    ane_artifact,
    ane_backend,
    ane_cases,
    ane_chain,
    ane_evidence,
    ane_gate,
    ane_probes,
    ane_program,
    ane_reference,
    ane_shard,
)
from pytest_ane.plugin._options import wanted
from pytest_ane.project import process as threads

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

__all__ = [
    "ane_against_baseline",
    "ane_artifact",
    "ane_backend",
    "ane_cases",
    "ane_chain",
    "ane_decode_benchmark",
    "ane_evidence",
    "ane_gate",
    "ane_load_benchmark",
    "ane_probes",
    "ane_program",
    "ane_reference",
    "ane_shard",
    "ane_shard_benchmark",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the `--ane-*` options and their ini twins."""
    options.add(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config,
) -> Generator[None, object, object]:
    """Provide a standard output where there is none, before pytest captures it."""
    given = early_config.known_args_namespace
    if given.ane_shards is not None or given.ane_package is not None:
        from pytest_ane.plugin import _process as process

        process.provide_output()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """End cleanly on SIGTERM, and with a sentence where standard output cannot be written."""
    if not wanted(config):
        return (yield)
    from pytest_ane.plugin import _process as process

    return (yield from process.run(config))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers; with shards selected, read the manifest and add the gate suite."""
    options.add_markers(config)
    with _usage_errors():
        collection.wake(config)
        compare.select(config, named=not collection.is_everything(config))
    if not wanted(config):
        options.refuse_recording_nothing(config)
        collection.add_to(config)
        return
    bench.check(config)
    threads.choose()
    from pytest_ane.plugin import _canary as canary
    from pytest_ane.plugin import _due as due
    from pytest_ane.plugin import _workspace as workspace

    with _usage_errors():
        config.stash[workspace.KEY] = space = workspace.open_workspace(config)
        canary.watch(config, space)
        bench.prepare(config, space)
        due.watch(config, space)
        collection.add_to(config)
        compare.refuse_damaged(config)
    if options.github(config) or options.reports(config) or options.model_explorer(config):
        from pytest_ane.plugin import _reports as reports

        reports.add_to(config)  # Last, so that it sees the exit code that all others came to.


def pytest_report_header(config: pytest.Config) -> list[str]:
    """One line with what decides the verdicts."""
    if not wanted(config):
        return []
    from pytest_ane.plugin import _summary as summary

    return [summary.header_line(config)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave benchmarks out of runs that are not for them."""
    return True if bench.is_ignored(collection_path, config) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let the shipped gate suite join what is collected, without gates that ask nothing."""
    report = yield
    collection.join(collector, report)
    collection.leave_out(report)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize gates: `ane_shard` by selected shard, `ane_chain` by complete model."""
    collection.parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let gates be found by the users' words: `-k residency`, `-m cosine`."""
    collection.add_words(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect gates that have nothing to ask, such as behaviour of half a chain; put in order."""
    if wanted(config):
        from pytest_ane.plugin import _runloop as runloop

        runloop.note_canaries(config, items)
    collection.drop_empty(config, items)
    bench.deselect(config, items)
    bench.use_processor_time(config, items)
    collection.in_order(config, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a comparison with nothing, before anything is built."""
    if wanted(session.config):
        with _usage_errors():
            bench.require_baseline(session)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """What is done once for a whole run, all workers included."""
    if not wanted(session.config) or session.config.option.collectonly:
        return (yield)
    from pytest_ane.plugin import _runloop as runloop

    with runloop.running(session):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist which run it belongs to."""
    if wanted(node.config):
        from pytest_ane.plugin import _run as run

        run.send_id(node.workerinput, node.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what the backend said with the test, and note what the gates say of a canary."""
    if wanted(item.config):
        from pytest_ane.plugin import _runloop as runloop

        runloop.keep(item, call)
    report = yield
    if wanted(item.config):
        from pytest_ane.plugin import _runloop as runloop

        runloop.note(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Turn our own errors into one sentence instead of a traceback."""
    __tracebackhide__ = True
    return (yield from _sentence(request.node))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Likewise for errors raised by the gate itself."""
    __tracebackhide__ = True
    return (yield from _sentence(pyfuncitem))


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """The table of verdicts, worst first; without shards, how to wake the gates."""
    if config.getoption("no_summary", False):
        return
    if not wanted(config):
        # Where other tests ran, those were meant.
        ran = any(map(terminalreporter.stats.get, ("passed", "failed", "error", "skipped")))
        if collection.are_asleep(config) and not ran:
            terminalreporter.write_line(
                "ane: gates are asleep; wake them with --ane-shards=all (or L01, sample:5)"
            )
        return
    from pytest_ane.plugin import _summary as summary

    # The tests have their outcome by now; a fault in the table must not bury it in a traceback.
    try:
        summary.write(terminalreporter, config)
    except Exception as error:
        from pytest_ane.mlprogram.text import printable

        text = printable(f"ane: the table of verdicts failed: {error!r}")
        terminalreporter.write_line(text, yellow=True)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Let our errors be pytest's: one sentence, and exit code 4."""
    try:
        yield
    except AneError as error:
        raise pytest.UsageError(str(error)) from None


def _sentence(node: pytest.Item | pytest.Collector) -> Generator[None, object, object]:
    __tracebackhide__ = True
    if not wanted(node.config):
        return (yield)
    try:
        return (yield)
    except AneError as error:
        problem = error
    # Outside of the handler, or pytest would print both exceptions.
    from pytest_ane.plugin import outcome

    if isinstance(problem, UnprovenError) and isinstance(node, pytest.Function):
        outcome.unproven(node, problem)
        return True
    outcome.record_error(node, problem)
    # pytest remarks on a traceback that is hidden altogether.
    __tracebackhide__ = False
    pytest.fail(str(problem), pytrace=False)
