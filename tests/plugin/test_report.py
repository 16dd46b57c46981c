"""`--ane-report`: all verdicts in a file."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import Project


def test_json_and_markdown(project: Project) -> None:
    project.packages(good="float32", nan="none", absent="none")
    result = project.gate("--ane-report=out/all.json", "--ane-report=all.md", "-k", "not placement")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    data = json.loads((project.path / "out" / "all.json").read_text())
    assert [verdict["status"] for verdict in data["verdicts"]] == [
        "error", "error", "failed", "passed", "passed", "passed"
    ]  # fmt: skip
    cosine = next(
        v for v in data["verdicts"] if v["subject"] == "own:good" and v["gate"] == "fidelity"
    )
    figure = next(f for f in cosine["figures"] if f["name"] == "cosine.min")
    assert figure["value"] == pytest.approx(1, abs=1e-4)
    assert figure["limit"] == 0.97
    assert "**own:nan** fidelity" in (project.path / "all.md").read_text()


@pytest.mark.heavy
def test_workers_send_their_verdicts(project: Project) -> None:
    project.packages(good="float32", nan="none").pytester.runpytest_subprocess(
        "-n2", "--ane-shards=all", "-m", "gate", "--ane-cache=cache", "--ane-report=all.json"
    )
    data = json.loads((project.path / "all.json").read_text())
    assert len(data["verdicts"]) == 6
    assert all(verdict["figures"] for verdict in data["verdicts"])


def test_another_format_is_a_usage_error(project: Project) -> None:
    result = project.packages(good="none").gate("--ane-report=all.pdf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--ane-report=all.pdf: there is no such format; end *"])


def test_the_end_of_a_file_s_name_may_be_in_capitals(project: Project) -> None:
    project.packages(good="none").gate("--ane-report=ALL.JSON")
    assert json.loads((project.path / "ALL.JSON").read_text())["verdicts"]


def test_a_folder_of_that_name_is_a_usage_error(project: Project) -> None:
    (project.path / "all.html").mkdir()
    result = project.packages(good="none").gate("--ane-report=all.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ane-report=*all.html: a folder has this name; name *"])


def test_a_file_that_cannot_be_written_is_a_usage_error(project: Project) -> None:
    (project.path / "file").write_text("")
    result = project.packages(good="none").gate("--ane-report=file/all.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ane-report=*file cannot be written (Not a directory)*"])


@pytest.mark.slow
def test_the_page_says_what_changed_since_the_last_run(project: Project) -> None:
    project.packages(good="float32")
    more = ("--ane-history", "--ane-report=r.html", "-m", "fidelity")
    assert "What changed since" not in _page(project, *more)
    assert "No figure with a limit differs." in _page(project, *more)
    line = (project.path / "history" / "own.jsonl").read_text().splitlines()[-1]
    changed = json.loads(line)
    changed["figures"]["cosine.min"] = 0.971
    (project.path / "history" / "own.jsonl").write_text(json.dumps(changed) + "\n")
    page = _page(project, *more)
    assert "own:good</a></th><td>fidelity</td><td>cosine</td>" in page
    assert "0.9710" in page


def _page(project: Project, *more: str) -> str:
    project.run("--ane-shards=all", *more).assert_outcomes(passed=1, deselected=3)
    return (project.path / "r.html").read_text()


def test_the_page_compares_with_the_run_whose_json_is_replaced(project: Project) -> None:
    project.packages(good="float32")
    more = ("--ane-report=r.json", "--ane-report=r.html", "-m", "fidelity")
    assert "What changed since" not in _page(project, *more)
    page = _page(project, *more)
    assert "What changed since 20" in page
    assert "No figure with a limit differs." in page
    (project.path / "r.json").write_text("{")
    result = project.run("--ane-shards=all", *more)
    result.stdout.fnmatch_lines(["ane: the report compares with no earlier run: *r.json is no *"])


def test_a_stopped_run_names_what_it_did_not_reach(project: Project) -> None:
    project.packages(nan="none", other="none")
    project.gate("-x", "-p", "no:randomly", "--ane-report=r.json", "--ane-report=r.html")
    data = json.loads((project.path / "r.json").read_text())
    assert data["run"]["stopped"].startswith("stopping after 1 failures")
    statuses = {(v["gate"], v["subject"]): v["status"] for v in data["verdicts"]}
    assert len(statuses) == 6
    assert "not run" in statuses.values()
    page = (project.path / "r.html").read_text()
    assert "were not run; stopped early: stopping after 1 failures" in page
