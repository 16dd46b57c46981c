"""The hooks of a run with shards, and what is done once for it: progress, a cluster, what is due.

A run over a cluster tells its workers what the collected tests will ask.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeGuard

import pytest

from pytest_ane.gates.base import GateTest
from pytest_ane.gates.registry import GATES
from pytest_ane.mlprogram.errors import AneError, CacheError, ClusterError, UnprovenError
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import _bench, _canary, _collection, _due, _summary, _workspace, outcome
from pytest_ane.plugin._items import asked_of, gate_of, is_gate, part_of, subject_of, test_of
from pytest_ane.plugin._options import on_github, usage_errors, value
from pytest_ane.plugin._process import ID, Watcher, is_worker, run_id, terminate_workers
from pytest_ane.plugin._workspace import Workspace
from pytest_ane.plugin.recording import LINE, MeasurementSource
from pytest_ane.project.suite import files

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_ane.cluster.assignment import Plan
    from pytest_ane.cluster.client import Cluster
    from pytest_ane.cluster.job import Job


def begin(config: pytest.Config) -> None:
    """Open the workspace, let all that watches a run watch it, and register these hooks."""
    config.pluginmanager.register(sys.modules[__name__], "ane-run")
    config.stash[_workspace.KEY] = space = _workspace.open_workspace(config)
    _canary.watch(config, space)
    _bench.prepare(config, space)
    _due.watch(config, space)
    _collection.add_to(config)
    _bench.refuse_damaged(config)
    files = config.getoption("ane_report"), config.getoption("ane_model_explorer")
    if files != (None, None) or on_github():
        from pytest_ane.plugin import _reports

        _reports.add_to(config)  # Last, so that it sees the exit code that all others came to.


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [_summary.header_line(config)]


def pytest_collection_finish(session: pytest.Session) -> None:
    with usage_errors():
        _bench.require_baseline(session)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """What is done once for a whole run, all workers included."""
    if session.config.option.collectonly:
        return (yield)
    with _running(session):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[ID] = run_id(node.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep with a test's report what the backend said and the verdict; note it of a canary."""
    notes = _workspace.of(item.config).notes
    item.user_properties += [("ane.note", text) for text in notes]
    notes.clear()
    outcome.record_outcome(item, call)
    report = yield
    _note(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Turn our own errors into one sentence instead of a traceback."""
    __tracebackhide__ = True
    return (yield from _sentence(request.node))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    __tracebackhide__ = True
    return (yield from _sentence(pyfuncitem))


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("no_summary", False):
        _summary.write(terminalreporter, config)


def _sentence(node: pytest.Item | pytest.Collector) -> Generator[None, object, object]:
    __tracebackhide__ = True
    try:
        return (yield)
    except AneError as error:
        problem = error
    # Outside of the handler, or pytest would print both exceptions.
    if isinstance(problem, UnprovenError) and isinstance(node, pytest.Function):
        outcome.unproven(node, problem)
        return True
    outcome.record_error(node, problem)
    # pytest remarks on a traceback that is hidden altogether.
    __tracebackhide__ = False
    pytest.fail(str(problem), pytrace=False)


@contextmanager
def _running(session: pytest.Session) -> Iterator[None]:
    config = session.config
    space = _workspace.of(config)
    # Models that are refused keep nobody from judging the others; the run stays red.
    if session.testsfailed == len(space.refused) and not session.shouldfail:
        config.option.continue_on_collection_errors = True
    controls = config.pluginmanager.hasplugin("dsession")
    # Only workers know which tests there are.
    if not controls:
        gates = [item for item in session.items if _is_asked(item)]
        asked = {subject.qualified for subject in map(asked_of, gates) if subject}
        space.scope = tuple(s for s in space.shards if {s.qualified, s.model} & asked)
        judged = {subject_of(item) for item in gates if gate_of(item) == "fidelity"}
        space.judged = lambda shard: shard.qualified in judged
    if is_worker(config) or not _opens(space):
        yield
    else:
        space.cache.sweep()
        watcher = Watcher(config, len(space.shards), space.run) if controls else nullcontext()
        with space.run.kept(), _spread(session, space):
            reporter = config.pluginmanager.getplugin("terminalreporter")
            if space.cluster is None and reporter is not None and config.get_verbosity() >= 0:
                # Where it cannot be found out what will be built, the gates will say why.
                with suppress(AneError, OSError):
                    for line in space.preflight.lines():
                        reporter.write_line(line)
            with watcher:
                try:
                    yield
                except KeyboardInterrupt:
                    terminate_workers(config)
                    raise
    if (due := config.stash.get(_due.KEY, None)) is not None:
        due.settle(session)


def _note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep the verdict with the report, and note what a gate says of a canary: others wait."""
    if _is_asked(item):
        report.ane_gate = tuple(test_of(item))  # type: ignore[attr-defined]
        report.ane_part = part_of(item)  # type: ignore[attr-defined]
        report.ane_shipped = item.path in files()  # type: ignore[attr-defined]
    if report.when == "call":
        report.ane_verdict = item.stash.get(outcome.VERDICT, None)  # type: ignore[attr-defined]
        report.ane_record = item.stash.get(LINE, None)  # type: ignore[attr-defined]
    if exchanged := _workspace.of(item.config).exchanged:
        report.ane_store = dict(exchanged)  # type: ignore[attr-defined]
        exchanged.clear()
    if (
        isinstance(item, pytest.Function)
        and _collection.is_canary(item.config, item)
        and (complaint := _canary.noted(report, gate_of(item))) is not None
    ):
        _canary.of(item.config).note(test_of(item), complaint)


def _is_asked(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and is_gate(item) and hasattr(item, "callspec")


@contextmanager
def _spread(session: pytest.Session, space: Workspace) -> Iterator[None]:
    if not space.cluster_url:
        yield
        return
    with usage_errors():
        joined = _join(session.config, space, session.items)
    try:
        yield
    finally:
        space.cluster = None
        joined.close()


def _opens(space: Workspace) -> bool:
    """Whether the cache can be written; the gates will say why it cannot."""
    try:
        return bool(space.cache)
    except CacheError:
        return False


def _join(config: pytest.Config, space: Workspace, items: Sequence[pytest.Item]) -> Cluster:
    try:
        from pytest_ane.cluster.client import Cluster
        from pytest_ane.cluster.job import inputs
        from pytest_ane.cluster.workers import Workers
    except ImportError as error:
        raise ClusterError(
            f"--ane-cluster needs {error.name or 'Dask'}; run: pip install 'pytest-ane[cluster]'"
        ) from None
    if any(mark.name == "bench" for item in items for mark in item.iter_markers()):
        raise ClusterError(
            "--ane-cluster: benchmarks time the machine that pytest runs on; run them with "
            "--ane-cluster=none."
        )
    reporter = config.pluginmanager.getplugin("terminalreporter")

    def say(text: str) -> None:
        if space.cluster is not None:  # While a test runs; the summary has it.
            space.notes.append(text)
        elif reporter is not None and config.get_verbosity() >= 0:
            reporter.ensure_newline()
            reporter.write_line(printable(f"ane: {text}", LONGEST))

    workers = Workers(
        space.cluster_url, value(config, "ane_cluster_timeout"), say,
        insecure=bool(config.getoption("ane_cluster_insecure")),
    )  # fmt: skip
    try:
        with space.progress.showing("waiting for workers"):
            job = _job(config, space, items)
            workers.join(job, inputs(space))
        say(workers.sentence)
        plan, show = _plan(config, space, items), space.progress.elsewhere
        cluster = Cluster(workers, job, space.cache, plan, say, show)
    except BaseException:
        workers.close()
        raise
    space.cluster, space.elsewhere = cluster, cluster.artifact
    return cluster


def _job(config: pytest.Config, space: Workspace, items: Sequence[pytest.Item]) -> Job:
    from pytest_ane.cluster.job import Job, needs_weights

    needing = {shard.model for shard in space.shards if needs_weights(shard)}
    fidelity = (item for item in filter(_is_shipped, items) if gate_of(item) == "fidelity")
    return Job(
        manifest=space.manifest,
        shards=space.shards,
        identities={name: space.model(name).identity for name in sorted(needing)},
        judged=frozenset(map(subject_of, fidelity)),
        store=space.store_url,
        units=space.units,
        device_timeout=space.device_timeout,
        memory=value(config, "ane_memory"),
        seconds=value(config, "ane_time"),
    )


def _is_shipped(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return _is_asked(item) and gate_of(item) in GATES and item.path in files()


def _plan(config: pytest.Config, space: Workspace, items: Sequence[pytest.Item]) -> Plan:
    from pytest_ane.cluster.assignment import Plan

    asked: dict[str, list[GateTest]] = {}
    on_device: dict[str, list[str]] = {}
    compared = set()
    for item in filter(_is_shipped, items):
        test = test_of(item)
        gate, subject = GATES[test.gate], test.subject
        if gate.scope == "model":
            continue
        tests = asked.setdefault(subject, [])
        if not gate.static:
            compared.add(subject)
        if space.policy_of(subject).requires_evidence(gate.name):
            on_device.setdefault(subject, []).append(gate.name)
        else:
            tests.append(test)
    canaries = _canary.of(config)
    first = {s.qualified for s in space.shards if canaries.has(s) or not canaries.of(s.model)}
    shards = {shard.qualified: shard for shard in space.shards}

    def lacking(subject: str, files: Mapping[str, str]) -> list[tuple[str, str]]:
        source = MeasurementSource(space, shards[subject], files=files)
        gates = on_device.get(subject, ())
        return [(gate, system) for gate in gates for system in source.lacking(gate)]

    return Plan(asked, frozenset(compared), frozenset(first), lacking)
