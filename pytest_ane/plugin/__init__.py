"""The pytest plugin: the hooks of every run; those of a run with shards are in `_runloop`.

This module and what it imports at the top need the standard library and pytest alone, so that a
run without ANE options pays nothing for having the plugin installed.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_ane.plugin import _bench, _collection, _fixtures, _options
from pytest_ane.plugin._options import usage_errors, wanted
from pytest_ane.project import process


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Bring the fixtures along."""
    pluginmanager.register(_fixtures, "ane-fixtures")
    pluginmanager.register(_bench, "ane-bench-fixtures")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the `--ane-*` options and their ini twins."""
    _options.add(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """End cleanly on SIGTERM."""
    if not wanted(config):
        return (yield)
    from pytest_ane.plugin._process import run

    return (yield from run(config))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers; with shards selected, read the manifest and add the gate suite."""
    _options.add_markers(config)
    with usage_errors():
        _collection.wake(config)
        _bench.select(config, named=not _collection.is_everything(config))
        if not wanted(config):
            if config.getoption("ane_record", None) is not None:
                raise pytest.UsageError(
                    "--ane-record records the gates of selected shards, and none is selected; add "
                    "--ane-shards=all -m gate."
                )
            _collection.add_to(config)
            return
        process.choose()
        from pytest_ane.plugin import _runloop

        _runloop.begin(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave benchmarks out of runs that are not for them."""
    return True if _bench.is_ignored(collection_path, config) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let the shipped gate suite join what is collected, without gates that ask nothing."""
    report = yield
    _collection.join(collector, report)
    _collection.leave_out(report)
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize gates: `ane_shard` by selected shard, `ane_chain` by complete model."""
    _collection.parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let gates be found by the users' words: `-k residency`, `-m cosine`."""
    _collection.add_words(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect gates that have nothing to ask, such as behaviour of half a chain; put in order."""
    _collection.drop_empty(config, items)
    _bench.deselect(config, items)
    _bench.use_processor_time(config, items)
    _collection.in_order(config, items)
