"""`--ane-report`: all verdicts in a file."""

from __future__ import annotations

import json
import os

import pytest

from pytest_ane.records.record import sealed
from pytest_ane.report.run import read_run
from tests.plugin.conftest import Project, refused
from tests.records.runs import verdicts


def test_records_and_markdown(project: Project) -> None:
    project.packages(good="float32", nan="none", absent="none")
    result = project.gate(
        "--ane-report=out/all.jsonl", "--ane-report=all.md", "-k", "not placement"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = verdicts(project.path / "out" / "all.jsonl")
    assert [verdict["status"] for verdict in found] == [
        "error", "error", "failed", "passed", "passed", "passed"
    ]  # fmt: skip
    cosine = next(v for v in found if v["subject"] == "own:good" and v["gate"] == "fidelity")
    figure = next(f for f in cosine["figures"] if f["name"] == "cosine.min")
    assert figure["value"] == pytest.approx(1, abs=1e-4)
    assert figure["limit"] == 0.97
    assert r"**own\:nan** fidelity" in (project.path / "all.md").read_text()


@pytest.mark.heavy
def test_workers_send_their_verdicts(project: Project) -> None:
    project.packages(good="float32", nan="none").pytester.runpytest_subprocess(
        "-n2", "--ane-shards=all", "-m", "gate", "--ane-cache=cache", "--ane-report=all.jsonl"
    )
    found = verdicts(project.path / "all.jsonl")
    assert len(found) == 6
    assert all(verdict["figures"] for verdict in found)


def test_another_format_is_a_usage_error(project: Project) -> None:
    refused(
        project.packages(good="none").gate("--ane-report=all.pdf"),
        "*--ane-report=all.pdf: there is no such format; end *",
    )


def test_the_end_of_a_file_s_name_may_be_in_capitals(project: Project) -> None:
    project.packages(good="none").gate("--ane-report=ALL.JSONL")
    assert verdicts(project.path / "ALL.JSONL")


def test_a_folder_of_that_name_is_a_usage_error(project: Project) -> None:
    (project.path / "all.html").mkdir()
    refused(
        project.packages(good="none").gate("--ane-report=all.html"),
        "--ane-report=*all.html: a folder has this name; name *",
    )


def test_a_file_that_cannot_be_written_is_a_usage_error(project: Project) -> None:
    (project.path / "file").write_text("")
    refused(
        project.packages(good="none").gate("--ane-report=file/all.md"),
        "--ane-report=*file cannot be written (Not a directory)*",
    )


@pytest.mark.slow
def test_the_page_says_what_changed_since_the_last_run(project: Project) -> None:
    project.packages(good="float32")
    more = ("--ane-report=history/", "--ane-report=r.html", "-m", "fidelity")
    assert "What changed since" not in _page(project, *more)
    assert "No figure with a limit differs." in _page(project, *more)
    first, second = sorted((project.path / "history").iterdir(), key=os.path.getmtime)
    first.unlink()
    facts, line, end = second.read_bytes().splitlines(keepends=True)
    data = json.loads(line)
    data["figures"]["cosine.min"] = 0.971
    second.write_bytes(facts + json.dumps(sealed(data)).encode() + b"\n" + end)
    page = _page(project, *more)
    assert "own:good</a></th><td>fidelity</td><td>cosine</td>" in page
    assert "0.9710" in page


def _page(project: Project, *more: str) -> str:
    project.run("--ane-shards=all", *more).assert_outcomes(passed=1, deselected=3)
    return (project.path / "r.html").read_text()


def test_the_page_compares_with_the_run_whose_file_is_replaced(project: Project) -> None:
    project.packages(good="float32")
    more = ("--ane-report=r.jsonl", "--ane-report=r.html", "-m", "fidelity")
    assert "What changed since" not in _page(project, *more)
    page = _page(project, *more)
    assert "What changed since 20" in page
    assert "No figure with a limit differs." in page
    lines = (project.path / "r.jsonl").read_text().splitlines()
    (project.path / "r.jsonl").write_text(f"{lines[0]}\n{{\n")
    result = project.run("--ane-shards=all", *more)
    says = "ane: the report compares with no earlier run: *r.jsonl:2 the JSON is damaged*"
    result.stdout.fnmatch_lines([says])


def test_another_file_is_not_replaced(project: Project) -> None:
    (project.path / "r.jsonl").write_text("{}")
    refused(
        project.packages(good="none").gate("--ane-report=r.jsonl"),
        "--ane-report: *r.jsonl is no file of a run and is not *",
    )


def test_a_stopped_run_names_what_it_did_not_reach(project: Project) -> None:
    project.packages(nan="none", other="none")
    project.gate("-x", "-p", "no:randomly", "--ane-report=r.jsonl", "--ane-report=r.html")
    run = read_run(project.path / "r.jsonl")
    assert run.facts.stopped.startswith("stopping after 1 failures")
    statuses = {(row.gate, row.subject): row.status for row in run.rows}
    assert len(statuses) == 6
    assert "not run" in statuses.values()
    page = (project.path / "r.html").read_text()
    assert "were not run; stopped early: stopping after 1 failures" in page
