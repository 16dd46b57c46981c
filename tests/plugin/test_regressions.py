"""Throughput against stored runs that are no baseline, and with a threshold made of noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.baseline import Baseline
from pytest_ane.gates.throughput.noise import Calibration, Noise, write
from pytest_ane.gates.throughput.speed import KEY, Speed
from pytest_ane.gates.throughput.storage import open_storage
from pytest_ane.manifest import Policy
from pytest_ane.plugin import regression
from pytest_ane.plugin.stopwatch import AGAIN
from tests.gates.throughput.runs import speed
from tests.plugin.conftest import Project
from tests.plugin.test_bench import bench, settle

LIMIT = "[models.own.policy.throughput]\nmax-regression = {}\n"


@pytest.fixture
def recorded(project: Project) -> Path:
    """The file of a run that timed a load; the policy asks for a comparison."""
    project.packages(LIMIT.format('"90%"'), good="none")
    bench(project, "-k", "load", "--benchmark-autosave").assert_outcomes(passed=1, deselected=7)
    (file,) = project.path.glob(".benchmarks/*/0001_*.json")
    return file


def test_another_machines_run_is_refused(project: Project, recorded: Path) -> None:
    data = json.loads(recorded.read_text())
    (load,) = data["benchmarks"]
    load["extra_info"][KEY]["identity"]["chip"] = "Apple M1"
    recorded.write_text(json.dumps(data))
    for option in ((), ("--benchmark-compare",)):
        result = bench(project, "-k", "load", *option)
        result.assert_outcomes(failed=1, deselected=7)
        result.stdout.fnmatch_lines(
            [
                "own:good: throughput unproven",
                "  - The stored run 0001 is no baseline: it is of another machine or backend: chip "
                "'Apple M1', here '*'. Record a baseline of this machine with: pytest -m bench *",
                "unproven own:good  throughput  load * · no baseline",
            ]
        )


def test_unproven_may_be_allowed(project: Project, recorded: Path) -> None:
    recorded.unlink()
    result = bench(project, "-k", "load", "--ane-unproven=allow")
    result.assert_outcomes(passed=1, deselected=7)


def test_nothing_stored_is_unproven_where_warnings_are_errors(project: Project) -> None:
    project.pytester.makeini("[pytest]\nfilterwarnings = error\n")
    project.packages(good="none")
    result = bench(project, "-k", "load", "--benchmark-compare")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["  - No run is stored in *. Record a baseline of this machine *"])
    assert bench(project, "-k", "none_such", "--benchmark-autosave").ret == 5


def test_half_a_run_is_one_sentence(project: Project, recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes()[:1000])
    result = bench(project, "-k", "load")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "own:good: throughput unproven",
            "  - */0001_*.json cannot be compared with (invalid JSON: *); delete it, and record it "
            "anew with: pytest -m bench --ane-shards=all --benchmark-autosave",
        ]
    )


def test_noise_that_was_measured_is_the_threshold(project: Project, recorded: Path) -> None:
    project.packages(LIMIT.format('"calibrated"'), good="none")
    result = bench(project, "-k", "load")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["  - *this machine's noise is not known; * pytest-ane calibrate"])
    settle(project)
    (found,) = json.loads(recorded.read_text())["benchmarks"]
    load = Speed.model_validate(found["extra_info"][KEY])
    # Sigma is 17 % of 1: a load many times as long is none.
    noise = Noise(what="load", subject="own:good", tokens=0, medians=(0.88, 1.12))
    storage = open_storage(str(project.path / ".benchmarks"))
    write(storage, Calibration(identity=load.identity, noises=(noise,)))
    slow = ("-p", "pytest_ane.testing.plugin", "--ane-slow=good:300")
    result = bench(project, "-k", "load", *slow)
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(
        ["  - Load: * and 47.5 % is allowed (2.8 sigma of 2 unchanged runs, pytest-ane calibrate)*"]
    )


@pytest.fixture
def timed_again(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Verdict, Speed]]:
    """Judges a speed of 5 s and further batches against one of 4 s; 10 % are allowed."""
    monkeypatch.setattr(regression, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(regression, "_baseline", lambda *_: Baseline(speed(4.0), "0001"))

    def judged(*batches: float) -> tuple[Verdict, Speed]:
        return _judged(speed(5.0), [speed(one) for one in batches], limit=0.1)

    return judged


def _judged(
    first: Speed,
    batches: Sequence[Speed],
    *,
    limit: float | None = None,
    before: Sequence[Speed] = (),
    recording: bool = False,
) -> tuple[Verdict, Speed]:
    """What becomes of a speed in a run that has timed others before; every batch is asked for."""
    options = SimpleNamespace(compared_mapping={}, compare_fail=())
    config = SimpleNamespace(
        stash=pytest.Stash(),
        getoption=lambda name, *_: recording if name == "benchmark_autosave" else None,
        _benchmarksession=options,
    )
    item: Any = SimpleNamespace(config=config, stash=pytest.Stash())
    left = iter(batches)
    if batches:
        item.stash[AGAIN] = lambda: next(left)
    policy = Policy(throughput={"max-regression": limit})
    space: Any = SimpleNamespace(policy_of=lambda _: policy, speeds=[(one, None) for one in before])
    benchmark = SimpleNamespace(extra_info={})
    verdict = regression.judged(item, space, first, benchmark)
    kept = Speed.model_validate(benchmark.extra_info[KEY])
    assert space.speeds[len(before) :] == [(kept, verdict)]
    assert list(left) == []
    return verdict, kept


def test_a_burst_is_no_regression(timed_again: Callable[..., tuple[Verdict, Speed]]) -> None:
    verdict, kept = timed_again(6.0, 4.1)
    assert (verdict.status, kept.seconds, kept.batches) == ("passed", (4.1,), 3)
    assert "slower at first: timed 3 times, and the fastest counts" in verdict.details


def test_a_regression_stays(timed_again: Callable[..., tuple[Verdict, Speed]]) -> None:
    verdict, kept = timed_again(6.0, 4.6, 5.5)
    assert (verdict.status, kept.seconds, kept.batches) == ("failed", (4.6,), 4)


def test_what_cannot_be_timed_again_is_judged_as_it_is(
    timed_again: Callable[..., tuple[Verdict, Speed]],
) -> None:
    verdict, kept = timed_again()
    assert (verdict.status, kept.batches) == ("failed", 1)


def test_a_baseline_waits_for_a_machine_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(regression, "_DISTURBED", 1.2)
    quick, slow = speed(4.0, yardstick=1.0), speed(6.0, yardstick=1.3)
    _, kept = _judged(slow, [slow, quick], before=[quick], recording=True)
    assert (kept.seconds, kept.yardstick, kept.batches) == ((4.0,), 1.0, 3)
    _, kept = _judged(speed(6.0, yardstick=1.1), [], before=[quick], recording=True)
    assert kept.batches == 1
    # Not its own clock's.
    other = quick.model_copy(update={"identity": {"timer": "time.time"}})
    _, kept = _judged(slow, [], before=[other], recording=True)
    assert kept.batches == 1


def test_who_only_looks_waits_for_nothing() -> None:
    quick, slow = speed(4.0, yardstick=1.0), speed(6.0, yardstick=1.3)
    _, kept = _judged(slow, [], before=[quick])
    assert kept.batches == 1
