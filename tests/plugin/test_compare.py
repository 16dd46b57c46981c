"""`--benchmark-compare`, literally: what it measures without a selection, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ane.gates.throughput import baseline
from pytest_ane.gates.throughput.baseline import Baseline, Calibration, Noise, write
from pytest_ane.gates.throughput.speed import KEY, Speed
from pytest_ane.gates.throughput.stored import folder_of, open_storage
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest import Policy
from pytest_ane.plugin import _bench
from pytest_ane.plugin._stopwatch import CONFIRM
from tests.gates.throughput.runs import run, speed
from tests.plugin.conftest import Project
from tests.plugin.test_bench import FAST, bench, settle

COMPARE = "--benchmark-compare"
LOOSE = '[models.own.policy.throughput]\nmax-regression = "99%"\n'
OWN = """
import time

def test_unmarked():
    pass

def test_mine(benchmark):
    benchmark.pedantic(time.sleep, (0,), rounds=2)
"""
HEAD = " ane throughput ".center(80, "=")


@pytest.fixture
def good(project: Project) -> Project:
    """Two packages of fixed shapes; a call of a second when it was recorded, for one of them."""
    return project.packages(LOOSE, good="none", other="none")


def recorded(project: Project, *options: str, shards: str = "good") -> None:
    assert bench(project, "--benchmark-autosave", *options, shards=shards).ret == 0
    settle(project, 100.0)


def refused(project: Project, *options: str) -> str:
    """The one sentence of a usage error; nothing has been measured."""
    result = project.run(*FAST, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR")]
    result.stdout.no_fnmatch_line("*ane throughput*")
    return line


def compared(result: pytest.RunResult) -> set[str]:
    """The benchmarks of our table that have a baseline."""
    lines = map(str.split, result.outlines[result.outlines.index(HEAD) :])
    return {" ".join(words[:2]) for words in lines if "100.00" in words}


@pytest.mark.drawn
@pytest.mark.parametrize("options", [(), ("-m", "bench"), ("--benchmark-compare=0001",)])
def test_without_a_selection_it_measures_what_the_newest_run_holds(
    good: Project, options: tuple[str, ...]
) -> None:
    """No gate, no other shard, no other test."""
    good.pytester.makepyfile(OWN)
    recorded(good)
    result = good.run(*FAST, *(options if "=" in "".join(options) else (COMPARE, *options)))
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] == 2
    assert compared(result) == {"own:good load", "own:good call"}
    result.stdout.no_fnmatch_line("*test_unmarked*")


def test_a_selection_is_compared_whatever_m_says(good: Project) -> None:
    """The gates run as without the option; what has no baseline is not proven."""
    recorded(good, shards="all")
    result = good.run(*FAST, "--ane-shards=other", COMPARE)
    assert compared(result) == {"own:other load", "own:other call"}
    result.stdout.fnmatch_lines(["5 gates: * passed *"])
    result = bench(good, COMPARE, shards="good")
    assert compared(result) == {"own:good load", "own:good call"}
    assert result.ret == 0


@pytest.mark.parametrize(
    "options",
    [
        (COMPARE,),
        ("-m", "bench", "--ane-shards=all", COMPARE),
        ("--ane-shards=good", COMPARE),
        ("--ane-shards=good", "-m", "bench", COMPARE, "--benchmark-autosave"),
    ],
)
def test_nothing_stored(good: Project, options: tuple[str, ...]) -> None:
    assert refused(good, *options).startswith(f"ERROR: {COMPARE}: No run is stored in ")


@pytest.mark.drawn
@pytest.mark.parametrize("options", [("-m", "gate"), ("-k", "none_such"), ("-m", "not bench")])
def test_no_benchmark_is_selected(good: Project, options: tuple[str, ...]) -> None:
    recorded(good)
    assert "no benchmark is selected" in refused(good, "--ane-shards=good", COMPARE, *options)


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
def test_a_run_that_compared_nothing_is_not_green(good: Project, option: str) -> None:
    recorded(good)
    result = good.run(*FAST, COMPARE, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["--benchmark-compare: nothing was compared"])


def test_an_option_of_the_ini_file_asks_for_nothing(good: Project) -> None:
    good.pytester.makeini(f"[pytest]\naddopts = {COMPARE}\n")
    good.pytester.makepyfile(OWN)
    good.run().assert_outcomes(passed=2)
    good.run("--ane-shards=good", "-k", "placement").assert_outcomes(passed=1, deselected=5)


@pytest.mark.filterwarnings("ignore:Can't compare")
def test_without_a_manifest_it_is_pytest_benchmark_s(project: Project) -> None:
    project.pytester.makepyfile(OWN)
    project.run(*FAST, COMPARE).assert_outcomes(passed=2)
    project.run(*FAST, "--benchmark-autosave")
    result = project.run(*FAST, COMPARE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["test_mine (0001*", "test_mine (NOW)*"])


def test_tests_that_are_named_are_run_alone(good: Project) -> None:
    own = good.pytester.makepyfile(OWN)
    recorded(good)
    result = good.run(*FAST, COMPARE, "-v", str(own))
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*ane throughput*")


@pytest.fixture
def stored(good: Project) -> Project:
    """A whole run, half of one, and one without a machine."""
    folder = folder_of(open_storage(str(good.path / ".benchmarks")))
    folder.mkdir()
    whole = run(speed(4.0))
    (folder / "0001_whole.json").write_text(json.dumps(whole))
    (folder / "0002_cut.json").write_text(json.dumps(whole)[:100])
    del whole["machine_info"]
    (folder / "0003_foreign.json").write_text(json.dumps(whole))
    return good


@pytest.mark.parametrize("shards", [(), ("--ane-shards=all",)])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        (COMPARE, "0003_foreign.json cannot be compared with (machine_info: field required"),
        (f"{COMPARE}=0002", "0002_cut.json cannot be compared with (invalid JSON: EOF while"),
    ],
)
def test_a_damaged_run(stored: Project, shards: tuple[str, ...], option: str, says: str) -> None:
    assert says in refused(stored, *shards, option)


def test_a_model_s_own_folder(project: Project, tmp_path: Path) -> None:
    project.manifest(
        f'[models.own]\nbaselines = "{tmp_path}/kept"\n'
        '[models.own.shard.good]\nreference = "none"\n'
        f'artifact = "{project.workshop.packages["good"]}"\n' + LOOSE
    )
    assert bench(project, "--benchmark-autosave").ret == 0
    (file,) = tmp_path.glob("kept/*/0001_*.json")
    data = json.loads(file.read_text())
    for one in data["benchmarks"]:
        one["extra_info"]["ane"]["seconds"] = [100.0]
    file.write_text(json.dumps(data))
    assert compared(project.run(*FAST, COMPARE)) == {"own:good load", "own:good call"}


# Throughput against stored runs: baselines that are none, limits made of noise, confirmations.

LIMIT = "[models.own.policy.throughput]\nmax-regression = {}\n"


@pytest.fixture
def of_a_load(project: Project) -> Path:
    """The file of a run that timed a load; the policy asks for a comparison."""
    project.packages(LIMIT.format('"90%"'), good="none")
    bench(project, "-k", "load", "--benchmark-autosave").assert_outcomes(passed=1, deselected=7)
    (file,) = project.path.glob(".benchmarks/*/0001_*.json")
    return file


def test_unproven_may_be_allowed(project: Project, of_a_load: Path) -> None:
    of_a_load.unlink()
    bench(project, "-k", "load", "--ane-unproven=allow").assert_outcomes(passed=1, deselected=7)


@pytest.mark.slow
def test_noise_that_was_measured_is_the_limit(project: Project, of_a_load: Path) -> None:
    project.packages(LIMIT.format('"calibrated"'), good="none")
    result = bench(project, "-k", "load")
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(["  - *this machine's noise is not known; * pytest-ane calibrate"])
    settle(project)
    (found,) = json.loads(of_a_load.read_text())["benchmarks"]
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
