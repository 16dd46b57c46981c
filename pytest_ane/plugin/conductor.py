"""What is done once for a whole run, in the process that started it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_ane.errors import CacheError
from pytest_ane.plugin import collection, workspace
from pytest_ane.plugin.canary import noted
from pytest_ane.plugin.keeper import gate_of
from pytest_ane.plugin.progress import Watcher
from pytest_ane.plugin.run import is_worker


@contextmanager
def conducting(session: pytest.Session) -> Iterator[None]:
    """Keep the folder that workers share, and show where they are."""
    config = session.config
    space = workspace.of(config)
    if is_worker(config) or not _opens(space):
        yield
        return
    space.cache.sweep()
    with space.run.kept():
        if not config.pluginmanager.hasplugin("dsession"):
            yield
            return
        watcher = Watcher(config, len(space.shards), space.run)
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Note what a gate says of a canary: others wait for it."""
    if isinstance(item, pytest.Function) and collection.is_canary(item.config, item):
        gate = gate_of(item)
        if (complaint := noted(report, gate)) is not None:
            workspace.of(item.config).canaries.note(item.callspec.id, gate, complaint)


def _opens(space: workspace.Workspace) -> bool:
    """Whether the cache can be written; the gates will say why it cannot."""
    try:
        return bool(space.cache)
    except CacheError:
        return False
