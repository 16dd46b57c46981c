"""`--ane-history`: what every gate measured, one line each."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.project.entries import read_manifest
from tests.permissions import binding_permissions
from tests.plugin.conftest import Project

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


def lines(folder: Path, model: str = "own") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{model}.jsonl").read_bytes().splitlines()]


def test_each_gate_of_each_shard_has_a_line(project: Project) -> None:
    project.packages(good="float32", ineligible="none")
    project.gate("--ane-history")
    written = lines(project.path / "history")
    assert sorted((line["gate"], line["subject"]) for line in written) == [
        (gate, f"own:{shard}")
        for gate in ("compression", "fidelity", "placement")
        for shard in ("good", "ineligible")
    ]
    assert len({line["run"] for line in written}) == 1
    good = next(
        line for line in written if (line["gate"], line["subject"]) == ("fidelity", "own:good")
    )
    assert good["format"] == 1
    assert good["backend"] == "cpu"
    assert good["test"] == ""
    assert good["chip"]
    assert set(good["versions"]) == {"pytest-ane", "numpy", "python"}
    assert all(re.fullmatch("[0-9a-f]{64}", good[key]) for key in ("artifact", "question"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", good["time"])
    assert good["figures"]["cosine.min"] == pytest.approx(1, abs=1e-4)


def test_a_line_is_no_verdict(project: Project) -> None:
    """Neither a status nor a limit: the same figures are judged by any policy."""
    project.packages(ineligible="none", nan="good", good="float32")
    assert project.gate("--ane-history").ret == pytest.ExitCode.TESTS_FAILED
    text = (project.path / "history" / "own.jsonl").read_text()
    assert not re.search("passed|failed|unproven|limit", text)


def test_a_run_adds_to_the_runs_before(project: Project) -> None:
    """The ini value names a folder relative to the ini file."""
    project.packages(good="none")
    (project.path / "pytest.ini").write_text("[pytest]\nane_history = memory\n")
    folder = project.path / "memory"
    folder.mkdir()
    (folder / "own.jsonl").write_text('{"format":1,"ga')
    project.gate("-k", "compression")
    project.gate("-k", "compression")
    half, *whole = (folder / "own.jsonl").read_text().splitlines()
    assert half == '{"format":1,"ga'
    assert [json.loads(line)["gate"] for line in whole] == ["compression"] * 2
    assert len({json.loads(line)["run"] for line in whole}) == 2


def test_a_package_alone_is_kept_in_the_current_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not beside the package, which may lie in a cache; so the commit is that folder's too."""
    folder = project.path / "here"
    folder.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in ("init -q", "commit -q --allow-empty -m one"):
        subprocess.run([*git, *command.split()], cwd=folder, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True)
    monkeypatch.chdir(folder)
    package = project.workshop.packages["good"]
    project.run(f"--ane-package={package}", "-m", "gate", "-k", "compression", "--ane-history")
    [line] = lines(folder / "history", "package")
    assert (line["subject"], line["commit"]) == ("package:good", head.stdout.strip())
    assert not (package.parent / "history").exists()


def test_a_gate_of_ones_own(project: Project) -> None:
    """Its figures are kept, NaN as a text; a gate that measured nothing leaves no line."""
    project.packages(good="none").pytester.makepyfile(test_own=MINE)
    project.gate("--ane-history=here", "-k", "mine or blind")
    [line] = lines(project.path / "here")
    assert (line["gate"], line["figures"], line["question"]) == ("mine", {"odd": "NaN"}, "")


def test_throughput_is_kept_test_by_test(project: Project) -> None:
    project.packages(good="none")
    project.run("--ane-shards=good", "-m", "bench", "--ane-history=here")
    written = {line["test"]: line for line in lines(project.path / "here")}
    assert set(written) == {"load", "call[Tmax]"}
    assert written["load"]["figures"]["seconds"] > 0
    assert "thread" in written["load"]["machine"]


def test_a_comparison_is_no_measurement(project: Project) -> None:
    """Figures that compare with a stored run stay with the verdict."""
    project.packages(good="none")
    bench = ("--ane-shards=good", "-m", "bench", "-k", "load")
    project.run(*bench, "--benchmark-autosave")
    result = project.run(*bench, "--benchmark-compare", "--ane-history=here", "-v")
    result.stdout.fnmatch_lines(["*change on run 0001*", "ane: 1 line of history in *here"])
    [line] = lines(project.path / "here")
    assert set(line["figures"]) == {"what", "seconds", "rounds", "tokens", "control_seconds"}


def test_git_merges_lines_by_union(project: Project) -> None:
    """A line that a run adds leaves the checkout clean; another change does not."""
    project.packages(good="none")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in ("init -q", "add .", "commit -qm one"):
        subprocess.run([*git, *command.split()], cwd=project.path, check=True)
    project.gate("--ane-history", "-k", "compression")
    folder = project.path / "history"
    assert (folder / ".gitattributes").read_text() == "*.jsonl merge=union\n"
    subprocess.run([*git, "add", "history"], cwd=project.path, check=True)
    project.gate("--ane-history", "-k", "compression", "--ane-report=run.json")
    project.packages("# a change\n", good="none")
    project.gate("--ane-history", "-k", "compression")
    written = lines(folder)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project.path, capture_output=True)
    assert {line["commit"] for line in written} == {head.stdout.decode().strip()}
    assert [line["clean"] for line in written] == [True, True, False]
    run = json.loads((project.path / "run.json").read_text())["run"]
    assert (run["commit"], run["clean"]) == (written[0]["commit"], True)


def test_a_folder_that_is_a_file_is_a_usage_error(project: Project) -> None:
    (project.path / "file").write_text("")
    result = project.packages(good="none").gate("--ane-history=file")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ane-history: *file cannot be written (File exists)*"])


def test_a_folder_without_permission_is_a_usage_error(project: Project) -> None:
    (project.path / "locked").mkdir(mode=0o500)
    with binding_permissions():
        result = project.packages(good="none").gate("--ane-history=locked")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ane-history: *cannot be written (Permission denied)*"])


def test_a_line_that_is_lost_fails_no_test(project: Project) -> None:
    (project.path / "here" / "own.jsonl").mkdir(parents=True)
    result = project.packages(good="none").gate("--ane-history=here", "-k", "compression")
    assert result.ret == pytest.ExitCode.OK
    lost = "ane: the history: *own.jsonl cannot be written (Is a directory)*"
    result.stdout.fnmatch_lines([lost])


@pytest.mark.drawn
@pytest.mark.heavy
def test_workers_send_their_lines(project: Project) -> None:
    project.packages(good="float32", nan="none").pytester.runpytest_subprocess(
        "-n2", "--ane-shards=all", "-m", "gate", "--ane-cache=cache", "--ane-history"
    )
    written = lines(project.path / "history")
    assert len(written) == 6
    assert len({line["run"] for line in written}) == 1


LIMITS = """
[models.{model}.policy]
compression = {{ max-bytes = "1 GB", min-ratio = 0.001 }}
fidelity = {{ max-relative-l2 = 0.5 }}
hazards = {{ max-table-error = 0.5 }}
throughput = {{ min-tok-s = 0.001 }}
"""


def limits_of(project: Project, *options: str) -> dict[str, set[str]]:
    """By gate, figures whose limits in verdicts are those that gates declare."""
    report = project.path / "all.json"
    project.run("--ane-shards=all", *options, f"--ane-report={report}")
    manifest = read_manifest(project.path / "shards.toml").in_arithmetic(("typed", "ane"))
    every: tuple[Subject, ...] = (*manifest.shards, *manifest.models)
    subjects = {subject.qualified: subject for subject in every}
    found: dict[str, set[str]] = {}
    for verdict in json.loads(report.read_text())["verdicts"]:
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


@pytest.mark.drawn
@pytest.mark.heavy
def test_declared_limits_of_a_family(project: Project) -> None:
    project.llama(LIMITS.format(model="mini"))
    found = limits_of(project, "-m", "gate or bench", "--ane-arithmetic=typed,ane")
    assert found["behaviour"] >= {"top1", "kl.mean", "centred_cosine.min", "positions"}
    assert found["fidelity"] >= {"algebra.max", "rounding.rms", "cosine.min"}
    assert found["throughput"] == {"tok_s"}
