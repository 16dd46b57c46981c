"""Throughput against stored runs: baselines that are none, limits made of noise, confirmations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ane.gates.throughput import baseline
from pytest_ane.gates.throughput.baseline import Baseline
from pytest_ane.gates.throughput.noise import Calibration, Noise, write
from pytest_ane.gates.throughput.speed import KEY, Speed
from pytest_ane.gates.throughput.stored import open_storage
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest import Policy
from pytest_ane.plugin import _bench
from pytest_ane.plugin._stopwatch import CONFIRM
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


def test_another_machines_run_is_unproven(project: Project, recorded: Path) -> None:
    data = json.loads(recorded.read_text())
    (load,) = data["benchmarks"]
    load["extra_info"][KEY]["identity"]["chip"] = "Apple M1"
    recorded.write_text(json.dumps(data))
    result = bench(project, "-k", "load")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(
        ["UNPROVEN own:good  throughput  The stored run 0001 is no baseline*"]
    )


def test_unproven_may_be_allowed(project: Project, recorded: Path) -> None:
    recorded.unlink()
    bench(project, "-k", "load", "--ane-unproven=allow").assert_outcomes(passed=1, deselected=7)


def test_half_a_run_is_one_sentence(project: Project, recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes()[:1000])
    result = bench(project, "-k", "load")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["  - */0001_*.json cannot be compared with (invalid JSON: *); *"])


@pytest.mark.slow
def test_noise_that_was_measured_is_the_limit(project: Project, recorded: Path) -> None:
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
    slow = ("-p", "pytest_ane.mac.testing", "--ane-slow=good:300")
    result = bench(project, "-k", "load", *slow)
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "  - Load: * (* when confirmed) * and 47.5 % is allowed (2.8 sigma of 2 unchanged "
            "runs, pytest-ane calibrate)*"
        ]
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Verdict, Speed, int]]:
    """Judges a speed against one of 4 s, 10 % allowed: verdict, stored speed, confirmations."""
    monkeypatch.setattr(baseline, "find", lambda *_: Baseline(speed(4.0), "0001"))
    monkeypatch.setattr(_bench, "_open", lambda *_: None)

    def judged(first: float, confirmation: float | None) -> tuple[Verdict, Speed, int]:
        session = SimpleNamespace(compared_mapping={}, compare_fail=())
        config = SimpleNamespace(getoption=lambda *_: None, _benchmarksession=session)
        item: Any = SimpleNamespace(config=config, stash=pytest.Stash())
        runs = list[float]()
        if confirmation is not None:
            item.stash[CONFIRM] = lambda: runs.append(confirmation) or (confirmation,)
        policy = Policy(throughput={"max-regression": 0.1})
        manifest = SimpleNamespace(model_of=lambda _: SimpleNamespace(baselines=None))
        space: Any = SimpleNamespace(policy_of=lambda _: policy, speeds=[], manifest=manifest)
        benchmark = SimpleNamespace(extra_info={})
        verdict = _bench.judged(item, space, speed(first), benchmark)
        kept = Speed.model_validate(benchmark.extra_info[KEY])
        assert space.speeds == [(kept, verdict)]
        return verdict, kept, len(runs)

    return judged


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(5.0, 6.0, "failed"), (5.0, 4.1, "passed"), (3.0, 9.0, "passed")],
)
def test_a_suspected_change_is_confirmed_once(
    judged: Callable[..., tuple[Verdict, Speed, int]], first: float, second: float, status: str
) -> None:
    """Slower or faster; the first run stays the one that is stored as a baseline."""
    verdict, kept, runs = judged(first, second)
    assert (verdict.status, runs) == (status, 1)
    assert (kept.seconds, kept.confirmation) == ((first,), (second,))


def test_within_the_limit_nothing_is_run_again(
    judged: Callable[..., tuple[Verdict, Speed, int]],
) -> None:
    verdict, kept, runs = judged(4.2, 9.0)
    assert (verdict.status, kept.confirmation, runs) == ("passed", (), 0)


def test_a_speed_that_cannot_be_timed_again_is_judged_as_it_is(
    judged: Callable[..., tuple[Verdict, Speed, int]],
) -> None:
    assert judged(5.0, None)[0].status == "failed"
