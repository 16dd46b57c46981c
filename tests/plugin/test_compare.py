"""`--benchmark-compare`, literally: what it measures without a selection, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ane.gates.throughput.stored import folder_of, open_storage
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


def test_a_part_of_a_run_is_measured_again(good: Project) -> None:
    recorded(good, "-k", "load", shards="all")
    result = good.run(*FAST, COMPARE)
    assert compared(result) == {"own:good load", "own:other load"}


def test_own_benchmarks_of_the_run_are_compared_with_it(good: Project) -> None:
    good.pytester.makepyfile(OWN)
    good.run(*FAST, "--ane-shards=good", "--benchmark-only", "--benchmark-autosave")
    settle(good, 100.0)
    result = good.run(*FAST, COMPARE)
    assert result.parseoutcomes()["passed"] == 3
    result.stdout.fnmatch_lines_random(["test_mine (0001*", "test_mine (NOW)*"])


def test_a_run_that_decoded_selects_the_whole_model(project: Project) -> None:
    project.llama('[models.mini.policy.throughput]\nmax-regression = "99%"\n')
    recorded(project, "-k", "decode", shards="all")
    result = project.run(*FAST, COMPARE)
    result.assert_outcomes(passed=1, deselected=12)
    result.stdout.fnmatch_lines(["ane: all *", "mini  decoding *"])


def test_a_selection_is_compared_whatever_m_says(good: Project) -> None:
    """The gates run as without the option; what has no baseline is not proven."""
    recorded(good, shards="all")
    result = good.run(*FAST, "--ane-shards=other", COMPARE)
    assert compared(result) == {"own:other load", "own:other call"}
    result.stdout.fnmatch_lines(["passed: *placement 1/1, throughput 2/2"])
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


def test_nothing_stored_where_warnings_are_errors(good: Project) -> None:
    good.pytester.makeini("[pytest]\nfilterwarnings = error\n")
    assert "No run is stored" in refused(good, COMPARE)
    own = good.pytester.makepyfile("def test_own(): pass")
    good.run(COMPARE, "--", str(own)).assert_outcomes(passed=1)


def test_only_other_shards_and_machines_are_stored(good: Project) -> None:
    recorded(good)
    says = "No stored run of this machine has any of these benchmarks."
    assert says in refused(good, "--ane-shards=other", COMPARE)
    text = (good.path / "shards.toml").read_text()
    good.packages(LOOSE, other="none")
    assert says in refused(good, COMPARE)
    good.manifest(text)
    (file,) = good.path.glob(".benchmarks/*/*.json")
    data = json.loads(file.read_text())
    for one in data["benchmarks"]:
        one["extra_info"]["ane"]["identity"]["chip"] = "Other"
    file.write_text(json.dumps(data))
    for options in ((), ("--ane-shards=good",)):
        assert "is of another machine or backend: " in refused(good, COMPARE, *options)


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


def test_what_is_no_run_and_no_folder(stored: Project) -> None:
    line = refused(stored, "--ane-shards=all", f"{COMPARE}=0007")
    assert "--benchmark-compare=0007 names no run in " in line
    line = refused(stored, COMPARE, "--benchmark-storage=elasticsearch+http://host")
    assert "is no folder, " in line


@pytest.mark.filterwarnings("ignore:Benchmark machine_info is different")
def test_a_whole_run_is_no_obstacle(stored: Project) -> None:
    result = stored.run("--ane-shards=all", f"{COMPARE}=0001", "--co", "-q")
    assert result.ret == pytest.ExitCode.OK


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
