"""pytest-benchmark's options in runs of ours: none is lost."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import Project, refused
from tests.plugin.test_bench import bench, saved, settle

SLOW = ("-p", "pytest_ane.mac.testing", "--ane-slow=good:50")
LIMIT = '[models.own.policy.throughput]\nmax-regression = "90%"\n'
OWN = """
import time
import pytest

@pytest.mark.bench
def test_other(benchmark):
    benchmark.pedantic(time.sleep, ({seconds},), rounds=2)
"""


@pytest.fixture
def good(project: Project) -> Project:
    """One package of fixed shapes: a load and a call are timed."""
    return project.packages(good="none")


def test_a_slow_shard_is_one_failed_test(project: Project) -> None:
    project.packages(LIMIT, good="none")
    call = ("-k", "call")
    bench(project, *call, "--benchmark-autosave").assert_outcomes(passed=1, skipped=1, deselected=6)
    settle(project)
    result = bench(project, *call, "--benchmark-compare", *SLOW)
    result.assert_outcomes(failed=1, skipped=1, deselected=6)
    result.stdout.fnmatch_lines(
        [
            "good slowed by 50 ms a call",
            "own:good: throughput failed",
            "  - Call: *(+* % when confirmed) on the baseline's * ms (run 0001 of *)*",
            "FAILED   own:good  throughput  Call: *",
            "own:good  call  * ms *",
        ]
    )


def test_no_baseline_is_unproven_unless_this_run_records_it(project: Project) -> None:
    project.packages(LIMIT, good="none")
    result = bench(project, "-k", "load")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["*; record a baseline of this machine with: pytest -m bench *"])
    result = bench(project, "-k", "load", "--benchmark-autosave")
    result.assert_outcomes(passed=1, deselected=7)
    result.stdout.fnmatch_lines(["passed   own:good  throughput  load *"])


@pytest.mark.drawn
@pytest.mark.slow
def test_compare_fail_fails_the_test(good: Project) -> None:
    bench(good, "-k", "load", "--benchmark-autosave")
    settle(good)
    fails = ("--benchmark-compare", "--benchmark-compare-fail=median:100%")
    result = bench(good, "-k", "load", *fails, *SLOW)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "  - --benchmark-compare-fail: Field 'median' has failed *, against *0001_*.json",
            "pytest-benchmark: Performance has regressed.",
            "*= ane throughput =*",
            "FAILED gates/test_throughput.py::test_load[[]own:good[]]*",
        ]
    )


def test_compare_fail_of_other_tests_is_an_exit_code(good: Project) -> None:
    good.pytester.makepyfile(OWN.format(seconds=0.001))
    bench(good, "-k", "other", "--benchmark-autosave")
    settle(good)
    good.pytester.makepyfile(OWN.format(seconds=0.1))
    fails = ("--benchmark-compare", "--benchmark-compare-fail=min:400%")
    result = bench(good, "-k", "other", *fails)
    result.assert_outcomes(passed=1, deselected=8)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["pytest-benchmark: Performance has regressed."])


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--benchmark-compare-fail=min:5%", "*add --benchmark-compare."),
        ("-pno:benchmark", "*leave -p no:benchmark out."),
    ],
)
def test_what_would_time_or_compare_nothing_is_one_line(
    good: Project, option: str, says: str
) -> None:
    refused(good.run("--ane-shards=all", "-m", "bench", option), says)


def test_rounds_are_as_many_however_long_they_take(good: Project) -> None:
    """Neither time nor the machine decides, but the number that was asked for."""
    run = ("--ane-shards=all", "-m", "bench", "--benchmark-autosave", "--benchmark-max-time=1e-9")
    for options, rounds in (((), {10, 50}), (("--benchmark-min-rounds=3",), {3})):
        good.run(*run, *options).assert_outcomes(passed=2, skipped=1, deselected=5)
        assert {one["stats"]["rounds"] for one in saved(good).values()} == rounds


def test_disabled_they_run_once_and_are_skipped(good: Project) -> None:
    result = bench(good, "--benchmark-disable", "-rs")
    result.assert_outcomes(skipped=3, deselected=5)
    result.stdout.fnmatch_lines(["SKIPPED [[]2[]] * run once and not timed: --benchmark-disable"])
    assert not list(good.path.glob(".benchmarks/*/*"))
    result = bench(good, "-k", "load", "--benchmark-disable", "--benchmark-enable")
    result.assert_outcomes(passed=1, deselected=7)


def test_only_and_skip(good: Project) -> None:
    only = good.run("--ane-shards=all", "--benchmark-only", "--benchmark-min-rounds=1")
    only.assert_outcomes(passed=2, skipped=4, deselected=2)
    bench(good, "--benchmark-skip").assert_outcomes(skipped=3, deselected=5)


def test_another_machine_s_run_outside_the_working_folder(
    good: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    stored = ("-k", "load", f"--benchmark-storage={folder}")
    bench(good, *stored, "--benchmark-autosave")
    (file,) = folder.glob("*/*.json")
    run = json.loads(file.read_text())
    run["machine_info"]["node"] = "another"
    run["benchmarks"][0]["extra_info"]["ane"]["identity"]["chip"] = "Other"
    file.write_text(json.dumps(run))
    refused(
        bench(good, *stored, "--benchmark-compare"),
        "*0001 is of another machine or backend: chip 'Other', here *",
    )


@pytest.mark.slow
def test_under_xdist_nothing_is_timed_and_that_is_said(project: Project) -> None:
    limit = LIMIT.replace("own", "own.shard.good")
    project.packages(limit, good="none", other="none")
    run = ("-n1", "--ane-shards=all", "-m", "bench", "-rs", "--benchmark-autosave")
    result = project.pytester.runpytest_subprocess(*run)
    result.assert_outcomes(skipped=4, failed=2)
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(
        ["*own:good was not timed: pytest-benchmark is off under xdist; leave -n out."]
    )
    result.stdout.fnmatch_lines(["SKIPPED [[]2[]] *: pytest-benchmark is off under xdist"])


def test_seconds_of_another_timer_are_not_compared(
    good: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    bench(good, "-k", "load", "--benchmark-autosave")
    timer = "--benchmark-timer=time.perf_counter"
    result = bench(good, "-k", "load", "--benchmark-compare", timer)
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["*is of another machine or backend: timer 'time.process_time*"])
