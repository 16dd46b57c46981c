"""`--ane-report`: all verdicts in a file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.project.entries import read_manifest
from pytest_ane.records.record import Record, sealed
from pytest_ane.records.run import Facts, Writer
from pytest_ane.records.run import read_run as read_records
from pytest_ane.report.run import read_run
from tests.ci.repository import git
from tests.plugin.conftest import Project, refused
from tests.records.runs import verdicts
from tests.report.explorer import check, check_data


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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("all.pdf", "--ane-report=all.pdf: there is no such format; end *"),
        ("all.html", "--ane-report=*all.html: a folder has this name; name *"),
        ("file/all.md", "--ane-report=*file cannot be written (Not a directory)*"),
        ("file/", "--ane-report: *file* cannot be written (File exists)*"),
        ("r.jsonl", "--ane-report: *r.jsonl is no file of a run and is not *"),
    ],
)
def test_what_cannot_be_written_is_a_usage_error(project: Project, name: str, says: str) -> None:
    (project.path / "all.html").mkdir()
    (project.path / "file").write_text("")
    (project.path / "r.jsonl").write_text("{}")
    refused(project.packages(good="none").gate(f"--ane-report={name}"), says)


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


def test_a_stopped_run_names_what_it_did_not_reach(project: Project) -> None:
    project.packages(nan="none", other="none")
    project.gate("-x", "-p", "no:randomly", "--ane-report=r.jsonl", "--ane-report=r.html")
    run = read_run(project.path / "r.jsonl")
    assert run.facts.stopped.startswith("stopping after 1 failures")
    statuses = {(row.gate, row.subject): row.status for row in run.rows}
    assert len(statuses) == 6
    assert "not run" in statuses.values()
    page = (project.path / "r.html").read_text()
    assert "not run; stopped early: stopping after 1 failures" in page


# The records of a run: what every gate measured, one line each.

WHO = ("-c", "user.name=a", "-c", "user.email=a@b")
MINE = """
import pytest
from pytest_ane.gates.verdict import Figure, Verdict, nothing

@pytest.mark.gate
def test_mine(ane_shard, ane_gate):
    ane_gate(Verdict("mine", ane_shard.qualified, (Figure("odd", float("nan"), limit=3.0),)))

@pytest.mark.gate
def test_blind(ane_shard, ane_gate):
    ane_gate(nothing("blind", ane_shard.qualified, "Nothing was measured"))
"""


def of_run(file: Path) -> tuple[Facts, list[Record]]:
    run = read_records(file)
    return run.facts, list(run.records)


def records(folder: Path) -> list[Record]:
    return [record for file in sorted(folder.iterdir()) for record in of_run(file)[1]]


def test_each_gate_of_each_shard_has_a_record(project: Project) -> None:
    project.packages(good="float32", ineligible="none")
    project.gate("--ane-report=history/")
    written = records(project.path / "history")
    assert sorted((each.gate, each.subject) for each in written) == [
        (gate, f"own:{shard}")
        for gate in ("compression", "fidelity", "placement")
        for shard in ("good", "ineligible")
    ]
    of = {(each.gate, each.subject): each for each in written}
    good = of["fidelity", "own:good"]
    assert good.environment["backend"] == "cpu"
    assert {"chip", "pytest-ane", "numpy", "python"} <= good.environment.keys()
    assert "backend" not in of["compression", "own:good"].environment  # Nothing was run.
    assert good.files.keys() > {"good/Manifest.json"}
    assert good.asked
    assert good.figures["cosine.min"] == pytest.approx(1, abs=1e-4)


def test_history_is_no_verdict(project: Project) -> None:
    """Neither a status nor a limit: the same figures are judged by any policy."""
    project.packages(ineligible="none", nan="good", good="float32")
    assert project.gate("--ane-report=history/").ret == pytest.ExitCode.TESTS_FAILED
    (file,) = (project.path / "history").iterdir()
    assert not re.search("passed|failed|unproven|limit", file.read_text())


def test_the_file_of_a_run_has_measurements_and_verdicts_too(project: Project) -> None:
    project.packages(other="good", good="float32")
    project.gate("--ane-report=run.jsonl", "--ane-report=history/")
    facts, written = of_run(project.path / "run.jsonl")
    assert facts.exit_code == pytest.ExitCode.TESTS_FAILED
    of = {(each.gate, each.subject): each for each in written}
    for gate in ("compression", "fidelity"):
        assert isinstance(of[gate, "own:good"].typed().measurement, GATES[gate].measurement)
    assert of["placement", "own:good"].measurement is None  # A forecast.
    red = of["fidelity", "own:other"].verdict
    assert red is not None
    assert (red["status"], red["outcome"]) == ("failed", "failed")
    kept = {(each.gate, each.subject): each for each in records(project.path / "history")}
    assert kept[("fidelity", "own:good")] == of["fidelity", "own:good"].brief()


def test_a_package_alone_is_of_the_current_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package may lie in a cache; so the commit is that of the current folder."""
    folder = project.path / "here"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, *WHO, "commit", "-q", "--allow-empty", "-m", "one")
    monkeypatch.chdir(folder)
    package = project.workshop.packages["good"]
    options = (f"--ane-package={package}", "-m", "gate", "-k", "compression")
    project.run(*options, "--ane-report=history/")
    (file,) = (folder / "history").iterdir()
    facts, (record,) = of_run(file)
    assert (record.subject, facts.commit) == (
        "package:good",
        git(folder, "rev-parse", "HEAD").strip(),
    )


def test_a_gate_of_ones_own(project: Project) -> None:
    """Its figures are kept, NaN as a text; of a gate that measured nothing the verdict is."""
    project.packages(good="none").pytester.makepyfile(test_own=MINE)
    project.gate("--ane-report=here/", "--ane-report=run.jsonl", "-k", "mine or blind")
    (record,) = records(project.path / "here")
    assert (record.gate, record.figures, record.question) == ("mine", {"odd": "NaN"}, "")
    assert {each.gate for each in of_run(project.path / "run.jsonl")[1]} == {"mine", "blind"}


def test_a_comparison_is_no_measurement(project: Project) -> None:
    """Figures that compare with a stored run stay with the verdict."""
    project.packages(good="none")
    bench = ("--ane-shards=good", "-m", "bench", "-k", "load")
    project.run(*bench, "--benchmark-autosave")
    result = project.run(*bench, "--benchmark-compare", "--ane-report=here/", "-v")
    result.stdout.fnmatch_lines(["*change on run 0001*", "ane: 1 record in *here*"])
    (record,) = records(project.path / "here")
    assert set(record.figures) == {"what", "seconds", "rounds", "tokens", "control_seconds"}


def test_a_record_that_is_lost_fails_no_test(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Writer, record: Record) -> None:
        raise EvidenceError(f"{self.path} cannot be written (No space left on device).")

    monkeypatch.setattr(Writer, "add", full)
    result = project.packages(good="none").gate("--ane-report=here/", "-k", "compression")
    assert result.ret == pytest.ExitCode.OK
    lost = "ane: the records of the run: *here*cannot be written (No space left on device)*"
    result.stdout.fnmatch_lines([lost])


LIMITS = """
[models.{model}.policy]
compression = {{ max-bytes = "1 GB", min-ratio = 0.001 }}
fidelity = {{ max-relative-l2 = 0.5 }}
throughput = {{ min-tok-s = 0.001 }}
"""


def limits_of(project: Project, *options: str) -> dict[str, set[str]]:
    """By gate, figures whose limits in verdicts are those that gates declare."""
    report = project.path / "all.jsonl"
    project.run("--ane-shards=all", *options, f"--ane-report={report}")
    manifest = read_manifest(project.path / "shards.toml").in_arithmetic(("typed", "ane"))
    every: tuple[Subject, ...] = (*manifest.shards, *manifest.models)
    subjects = {subject.qualified: subject for subject in every}
    found: dict[str, set[str]] = {}
    for verdict in verdicts(report):
        gate, subject = GATES[verdict["gate"]], subjects[verdict["subject"]]
        declared = gate.limits(gate.policy(subject.policy), subject)
        for figure in verdict["figures"]:
            if figure["limit"] is None:
                # Below it a weight's error has none, so that the size stands in the row.
                assert figure["name"] not in declared or figure["name"] in WEIGHTS, figure
            elif figure["name"] not in OF_MEASUREMENTS:
                assert declared[figure["name"]] == (figure["limit"], figure["good"])
                found.setdefault(gate.name, set()).add(figure["name"])
    return found


WEIGHTS = ("max_weight_error", "max_weight_row_error")
OF_MEASUREMENTS = ("total_error.rms", "perplexity.reference", "change")
"""Limits that depend on what was measured."""


def test_declared_limits_are_those_of_verdicts(project: Project) -> None:
    """Of packages of one's own, where some thresholds follow from others."""
    project.packages(LIMITS.format(model="own"), good="float32", other="good")
    found = limits_of(project, "-m", "gate or bench", "--ane-arithmetic=typed,ane")
    assert found["fidelity"] >= {"cosine.min", "relative_l2.max"}
    assert found["compression"] == {"size_bytes", "ratio"}
    assert found["hazards"] >= {"sum.max", "dropped.max"}


# `--ane-model-explorer`: graphs of the judged shards.


def graphs(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.drawn
def test_a_graph_and_its_data_for_every_judged_shard(project: Project) -> None:
    project.packages(good="float32", absent="none")
    project.gate("--ane-model-explorer=out/graphs", "--ane-blame=always", "-k", "not compression")
    found = graphs(project.path / "out" / "graphs")
    assert {"own_good.json", "own_good.unit.json", "own_good.error.json"} <= {*found}
    assert "own_absent.json" not in found
    nodes = check(found["own_good.json"])
    assert [*nodes] == ["own:good"]
    for word in ("unit", "error"):
        check_data(found[f"own_good.{word}.json"], nodes)


def test_a_folder_that_cannot_be_made_is_a_usage_error(project: Project) -> None:
    (project.path / "file").write_text("")
    refused(
        project.packages(good="none").gate("--ane-model-explorer=file/graphs"),
        "--ane-model-explorer=*file cannot be written (*",
    )
