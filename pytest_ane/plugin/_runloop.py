"""What is done once for a whole run, in the process that started it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pytest_ane.manifest import Model, Shard
from pytest_ane.mlprogram.errors import AneError, CacheError
from pytest_ane.plugin import (
    _canary as canary,
)
from pytest_ane.plugin import (
    _cluster as cluster,
)
from pytest_ane.plugin import (
    _collection as collection,
)
from pytest_ane.plugin import (
    _due as due,
)
from pytest_ane.plugin import (
    _workspace as workspace,
)
from pytest_ane.plugin._items import gate_of, is_gate, part_of, subject_of, test_of
from pytest_ane.plugin._progress import Watcher
from pytest_ane.plugin._records import LINE
from pytest_ane.plugin._run import is_worker
from pytest_ane.plugin.outcome import VERDICT, record_outcome
from pytest_ane.project.suite import files


@contextmanager
def running(session: pytest.Session) -> Iterator[None]:
    """Keep the folder that workers share, and show where they are."""
    config = session.config
    space = workspace.of(config)
    # Models that are refused keep nobody from judging the others; the run stays red.
    if session.testsfailed == len(space.refused) and not session.shouldfail:
        config.option.continue_on_collection_errors = True
    controls = config.pluginmanager.hasplugin("dsession")
    # Only workers know which tests there are.
    if not controls:
        space.scope = _scope(space, session.items)
        judged = _judged(session.items)
        space.judged = lambda shard: shard.qualified in judged
    if is_worker(config) or not _opens(space):
        yield
        _settle(session)
        return
    space.cache.sweep()
    with space.run.kept(), _spread(session, space):
        _report(config, space)
        if not controls:
            yield
            _settle(session)
            return
        watcher = Watcher(config, len(space.shards), space.run)
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()
        _settle(session)


def keep(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Attach backend notes to the test item for the terminal summary; an outcome gets its row."""
    notes = workspace.of(item.config).notes
    item.user_properties += [("ane.note", text) for text in notes]
    notes.clear()
    record_outcome(item, call)


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Keep the verdict with the report, and note what a gate says of a canary: others wait."""
    if isinstance(item, pytest.Function) and is_gate(item) and hasattr(item, "callspec"):
        report.ane_gate = tuple(test_of(item))  # type: ignore[attr-defined]
        report.ane_part = part_of(item)  # type: ignore[attr-defined]
        report.ane_shipped = item.path in files()  # type: ignore[attr-defined]
    if (data := item.stash.get(VERDICT, None)) is not None and report.when == "call":
        report.ane_verdict = data  # type: ignore[attr-defined]
    if exchanged := workspace.of(item.config).exchanged:
        report.ane_store = dict(exchanged)  # type: ignore[attr-defined]
        exchanged.clear()
    if (line := item.stash.get(LINE, None)) is not None and report.when == "call":
        report.ane_record = line  # type: ignore[attr-defined]
    if (
        isinstance(item, pytest.Function)
        and collection.is_canary(item.config, item)
        and (complaint := canary.noted(report, gate_of(item))) is not None
    ):
        canary.of(item.config).note(test_of(item), complaint)


def note_canaries(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Remember the gates of canaries as they were collected, before any is deselected."""
    for item in items:
        if isinstance(item, pytest.Function) and collection.is_canary(config, item):
            canary.of(config).collected(test_of(item), item)


def _settle(session: pytest.Session) -> None:
    """Report gates that are due and were not judged, unless the run is no whole one."""
    if (gates := session.config.stash.get(due.KEY, None)) is not None:
        gates.settle(session)


def _scope(space: workspace.Workspace, items: Sequence[pytest.Item]) -> tuple[Shard, ...]:
    """The selected shards that any test asks about."""
    params = [item.callspec.params for item in items if isinstance(item, pytest.Function)
              and hasattr(item, "callspec")]  # fmt: skip
    wanted = {shard.qualified for p in params if isinstance(shard := p.get("ane_shard"), Shard)}
    models = {model.name for p in params if isinstance(model := p.get("ane_chain"), Model)}
    return tuple(s for s in space.shards if s.qualified in wanted or s.model in models)


def _judged(items: Sequence[pytest.Item]) -> frozenset[str]:
    """Qualified ids of the shards whose fidelity a test asks for."""
    gates = (item for item in items if isinstance(item, pytest.Function) and is_gate(item))
    return frozenset(
        subject_of(item)
        for item in gates
        if hasattr(item, "callspec") and gate_of(item) == "fidelity"
    )


def _report(config: pytest.Config, space: workspace.Workspace) -> None:
    """Say what will be built; where that cannot be found out, the gates will say why."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if space.cluster is None and reporter is not None and config.get_verbosity() >= 0:
        with suppress(AneError, OSError):
            for line in space.preflight.lines():
                reporter.write_line(line)


@contextmanager
def _spread(session: pytest.Session, space: workspace.Workspace) -> Iterator[None]:
    """Let a cluster's workers build and measure, if the run is spread over one.

    Raises:
        pytest.UsageError: it cannot be joined.
    """
    if not space.cluster_url:
        yield
        return
    try:
        joined = cluster.join(session.config, space, session.items)
    except AneError as error:
        raise pytest.UsageError(str(error)) from None
    try:
        yield
    finally:
        space.cluster = None
        joined.close()


def _opens(space: workspace.Workspace) -> bool:
    """Whether the cache can be written; the gates will say why it cannot."""
    try:
        return bool(space.cache)
    except CacheError:
        return False
