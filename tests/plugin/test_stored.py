"""`--benchmark-compare` with runs that cannot be compared with: refused before anything runs."""

from __future__ import annotations

import json

import pytest

from pytest_ane.gates.throughput.storage import folder_of, open_storage
from tests.gates.throughput.runs import run, speed
from tests.plugin.conftest import Project


@pytest.fixture
def stored(project: Project) -> Project:
    project.packages(good="none")
    folder = folder_of(open_storage(str(project.path / ".benchmarks")))
    folder.mkdir()
    whole = run(speed(4.0))
    (folder / "0001_whole.json").write_text(json.dumps(whole))
    (folder / "0002_cut.json").write_text(json.dumps(whole)[:100])
    del whole["machine_info"]
    (folder / "0003_foreign.json").write_text(json.dumps(whole))
    return project


@pytest.mark.parametrize(
    ("option", "file", "why"),
    [
        ("--benchmark-compare", "0003_foreign.json", "machine_info: field required"),
        ("--benchmark-compare=0002", "0002_cut.json", "invalid JSON: EOF while parsing"),
    ],
)
def test_a_damaged_run(stored: Project, option: str, file: str, why: str) -> None:
    result = stored.run("--ane-shards=all", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line]
    assert line.startswith("ERROR: ")
    assert f"{file} cannot be compared with ({why}" in line
    assert "delete it, and record it anew with: pytest -m bench" in line


def test_a_run_that_does_not_exist(stored: Project) -> None:
    result = stored.run("--ane-shards=all", "--benchmark-compare=0007")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --benchmark-compare=0007 names no run in */.benchmarks/*"])


def test_a_database(stored: Project) -> None:
    result = stored.run(
        "--ane-shards=all", "--benchmark-compare", "--benchmark-storage=elasticsearch+http://host"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --benchmark-storage=* is no folder, *leave it out."])


@pytest.mark.filterwarnings("ignore:Benchmark machine_info is different")
def test_whole_runs_are_no_obstacle(stored: Project) -> None:
    result = stored.run("--ane-shards=all", "--benchmark-compare=0001", "--co", "-q")
    assert result.ret == pytest.ExitCode.OK
