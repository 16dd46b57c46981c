"""A speed held against the policy, and against the stored run of this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.baseline import Baseline, Missing, find
from pytest_ane.gates.throughput.judge import judge
from pytest_ane.gates.throughput.speed import KEY, Speed
from pytest_ane.gates.throughput.storage import STORAGE, storage_of
from pytest_ane.plugin import bench_options
from pytest_ane.plugin.stopwatch import AGAIN
from pytest_ane.plugin.workspace import Workspace

_PAUSES = (0.1, 0.3, 1.0, 3.0)
"""Seconds before a slowdown is timed again: most of what others do to a machine passes."""
_ROOM = 60.0
"""Seconds of a run for timing again: where everything is slower, it is no passing matter."""
_DISTURBED = 1.2
"""How much longer than its least the yardstick takes where a baseline had better wait."""
_SPENT = pytest.StashKey[float]()


def judged(item: pytest.Item, space: Workspace, speed: Speed, benchmark: Any) -> Verdict:
    """The verdict on a speed, which is kept for the table.

    What is slower than it may be is timed again, a few times: a regression stays, and a neighbour's
    burst does not. So is what becomes a baseline while the machine itself is slow.

    Raises:
        UnprovenError: a stored run that would be the baseline is damaged.
    """
    config = item.config
    policy = space.policy_of(speed.subject).throughput
    compared = bench_options.compared(config)
    looks = compared or policy.max_regression is not None
    baseline = _baseline(config, space, speed) if looks else None
    recording = bench_options.recording(config)

    def verdict_on(speed: Speed) -> Verdict:
        return judge(speed, baseline, policy, recording=recording, compared=compared)

    def settled(verdict: Verdict) -> bool:
        # Compared and not passed, or below a floor, or passed with the machine's own slowness.
        slow = verdict.status == "failed" or "warnings" in verdict.facts
        slow |= verdict.status == "unproven" and "change" in verdict.facts
        return not (slow or (recording and _disturbed(speed, space)))

    batches, verdict = _batches(item), verdict_on(speed)
    while not settled(verdict) and (batch := next(batches, None)) is not None:
        count = speed.batches + 1
        speed = min(speed, batch, key=lambda one: one.median).model_copy(update={"batches": count})
        verdict = verdict_on(speed)
    benchmark.extra_info[KEY] = speed.to_json()
    if worse := tuple(_worse(config, benchmark)):
        verdict = replace(verdict, status="failed", reasons=(*verdict.reasons, *worse))
    benchmark.extra_info[KEY]["status"] = verdict.status
    space.speeds.append((speed, verdict))
    return verdict


def _disturbed(speed: Speed, space: Workspace) -> bool:
    """Whether the machine was slower than it was for another benchmark of this run."""
    others = [one for one, _ in space.speeds if one.identity == speed.identity]
    known = [one.yardstick for one in others if one.yardstick is not None]
    return speed.yardstick is not None and speed.yardstick > _DISTURBED * min(known, default=inf)


def _batches(item: pytest.Item) -> Iterator[Speed]:
    """The rounds timed again and again, as long as the run has time for it."""
    again, stash = item.stash.get(AGAIN, None), item.config.stash
    if again is None:
        return
    for pause in _PAUSES:
        start = time.monotonic()
        if stash.get(_SPENT, 0.0) > _ROOM:
            return
        time.sleep(pause)
        found = again()
        stash[_SPENT] = stash.get(_SPENT, 0.0) + time.monotonic() - start
        yield found


def use_baselines(config: pytest.Config, space: Workspace) -> None:
    """Let pytest-benchmark keep runs where the manifest says, if that is one place."""
    models = {shard.model for shard in space.shards}
    folders = {space.manifest.model_of(name).baselines for name in models}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is not None and config.getoption("benchmark_storage") == STORAGE:
        config.option.benchmark_storage = f"file://{folder}"


def _baseline(config: pytest.Config, space: Workspace, speed: Speed) -> Baseline | Missing:
    default = config.getoption("benchmark_storage") == STORAGE
    folder = space.manifest.model_of(speed.subject.partition(":")[0]).baselines
    storage = storage_of(bench_options.session(config), folder if default else None)
    given = config.getoption("benchmark_compare")
    return find(storage, speed, given if isinstance(given, str) else None)


def _worse(config: pytest.Config, benchmark: Any) -> Iterator[str]:
    """What `--benchmark-compare-fail` says, as pytest-benchmark will at the end of the run."""
    session = bench_options.session(config)
    for path, stored in session.compared_mapping.items():
        for limit in session.compare_fail or ():
            then = stored.get(benchmark.fullname)
            if then is not None and (why := limit.fails(benchmark.stats, then["stats"])):
                yield f"--benchmark-compare-fail: {why}, against {path}."
