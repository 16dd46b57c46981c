"""A run over the workers of a cluster: what they are asked, and what the person hears of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

import pytest

from pytest_ane.gates.base import GateTest
from pytest_ane.gates.registry import GATES
from pytest_ane.mlprogram.errors import ClusterError
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import _canary as canary
from pytest_ane.plugin import _options as options
from pytest_ane.plugin._items import gate_of, is_gate, subject_of, test_of
from pytest_ane.plugin._workspace import Workspace
from pytest_ane.plugin.recording import MeasurementSource
from pytest_ane.project.suite import files

if TYPE_CHECKING:
    from pytest_ane.cluster.assignment import Plan
    from pytest_ane.cluster.client import Cluster
    from pytest_ane.cluster.job import Job


def join(config: pytest.Config, space: Workspace, items: Sequence[pytest.Item]) -> Cluster:
    """Connect, and let workers begin with what the items will ask.

    Raises:
        ClusterError: Dask is not installed, no scheduler answers, or no worker can take part.
    """
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

    workers = Workers(space.cluster_url, options.cluster_timeout(config), say)
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
    from pytest_ane.cluster.job import Job

    fidelity = (item for item in filter(_is_shipped, items) if gate_of(item) == "fidelity")
    return Job(
        manifest=space.manifest,
        shards=space.shards,
        identities=_identities(space),
        judged=frozenset(map(subject_of, fidelity)),
        store=space.store_url,
        units=space.units,
        device_timeout=space.device_timeout,
        memory=options.memory(config),
        seconds=options.seconds(config),
        max_cache=space.max_cache,
    )


def _identities(space: Workspace) -> dict[str, dict[str, object]]:
    """Of models from which something is built or compared with."""
    from pytest_ane.cluster.job import needs_weights

    needing = {shard.model for shard in space.shards if needs_weights(shard)}
    return {name: space.model(name).identity for name in sorted(needing)}


def _is_shipped(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return (
        isinstance(item, pytest.Function)
        and is_gate(item)
        and hasattr(item, "callspec")
        and gate_of(item) in GATES
        and item.path in files()
    )


def _plan(config: pytest.Config, space: Workspace, items: Sequence[pytest.Item]) -> Plan:
    """What shipped gates will ask; a user's own may turn out to need less, or more."""
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
    canaries = canary.of(config)
    first = {s.qualified for s in space.shards if canaries.has(s) or not canaries.of(s.model)}
    shards = {shard.qualified: shard for shard in space.shards}

    def lacking(subject: str, files: Mapping[str, str]) -> list[tuple[str, str]]:
        source = MeasurementSource(space, shards[subject], files=files)
        gates = on_device.get(subject, ())
        return [(gate, system) for gate in gates for system in source.lacking(gate)]

    return Plan(asked, frozenset(compared), frozenset(first), lacking)
