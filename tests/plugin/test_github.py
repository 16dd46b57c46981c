"""On GitHub Actions: job summary and annotations, written once, never in the way."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ane.report.run import read_run
from tests.hostile import check_lines
from tests.plugin.conftest import Project
from tests.tools.test_hostile import NAMES, hostile_package


@pytest.fixture
def summary(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a step of GitHub Actions finds its summary."""
    file = project.path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path))
    return file


def annotations(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("::")]


def test_a_green_run(project: Project, summary: Path) -> None:
    result = project.packages(good="none").gate()
    assert result.ret == pytest.ExitCode.OK
    assert [line.partition(" ")[0] for line in annotations(result)] == ["::warning", "::notice"]
    says = "::notice title=ane gates::*1 warned, 2 passed*cpu*"
    result.stdout.fnmatch_lines(["=* 3 passed*", says])
    text = summary.read_text()
    assert text.startswith(
        "## ane gates: 1 warned, 2 passed\n\n`ane: all · shards 1 of 1 · backend cpu "
    )
    assert "<details><summary>passed (2)</summary>" in text


def test_a_red_run_after_another_commands_text(project: Project, summary: Path) -> None:
    summary.write_text("# mine\n")
    result = project.packages(nan="none", good="other").gate()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    errors = [line for line in annotations(result) if line.startswith("::error ")]
    assert [error.partition("title=")[2].partition("::")[0] for error in errors] == [
        "own%3Agood fidelity failed", "own%3Anan fidelity failed"
    ]  # fmt: skip
    assert "file=shards.toml,line=5," in errors[0]
    assert "file=shards.toml,line=1," in errors[1]
    text = summary.read_text()
    assert text.startswith("# mine\n\n## ane gates: 2 failed, 2 warned, 2 passed\n")
    assert "live probes are below" in text


@pytest.mark.drawn
@pytest.mark.parametrize("more", [["-q"], ["-qq"], ["--no-summary"], ["-p", "no:terminal"]])
def test_written_however_quiet_the_run_is(
    project: Project, summary: Path, more: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    project.packages(good="other").gate("--junitxml=out.xml", *more)
    shown = capfd.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in shown if line.startswith("::")] == [
        "::error",
        "::warning",
        "::notice",
    ]
    assert summary.read_text().count("## ane gates: 1 failed, 1 warned, 1 passed") == 1
    assert (project.path / "out.xml").is_file()


@pytest.mark.drawn
@pytest.mark.slow
def test_workers_write_nothing_of_their_own(project: Project, summary: Path) -> None:
    result = project.packages(good="other", nan="none").pytester.runpytest_subprocess(
        "-n2", "--ane-shards=all", "-m", "gate", "--ane-cache=cache", "-k", "not behaviour"
    )
    result.assert_outcomes(passed=4, failed=2)
    assert len(annotations(result)) == 5
    assert summary.read_text().count("## ane gates: 2 failed, 2 warned, 2 passed") == 1


def test_what_broke_without_a_verdict_is_not_left_out(project: Project, summary: Path) -> None:
    project.own_gate("\n@pytest.mark.gate\ndef test_fidelity(ane_shard):\n    1 / 0\n")
    result = project.packages(good="none").gate()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["::error file=gates/test_fidelity.py,line=5,title=own%3Agood fidelity error::ZeroDiv*"]
    )
    assert "## ane gates: 1 error, 1 warned, 1 passed\n" in summary.read_text()


def test_an_assertion_is_annotated_where_it_stands(project: Project, summary: Path) -> None:
    project.pytester.makepyfile(
        test_mine="""
        import numpy as np
        import pytest

        @pytest.mark.gate
        def test_taste(ane_shard):
            assert np.ones(3).argmax() == 2
        """
    )
    result = project.packages(good="none").gate("-k", "taste")
    (error,) = (line for line in annotations(result) if line.startswith("::error"))
    assert error == (
        "::error file=test_mine.py,line=6,title=own%3Agood taste failed::assert np.int64(0) == 2"
    )


def test_a_summary_that_cannot_be_written_fails_nothing(
    project: Project, summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary.write_text("x" * 999_990)
    result = project.packages(good="none").gate()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ane: the job summary * cannot be written: it has 999,990 bytes*"])
    assert summary.stat().st_size == 999_990
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary / "below" / "nothing.md"))
    result = project.gate()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ane: the job summary * cannot be written: *"])


def test_a_fault_in_the_report_leaves_the_outcome_alone(
    project: Project, summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no lines")

    monkeypatch.setattr("pytest_ane.plugin._reports.places", fail)
    result = project.packages(good="none").gate()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ane: the report of the run failed: ZeroDivisionError(*)"])


def test_collected_alone_and_elsewhere_it_says_nothing(
    project: Project, summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not annotations(project.packages(good="none").gate("--co"))
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert not annotations(project.gate())
    assert not summary.exists()


@pytest.mark.drawn
@pytest.mark.slow
def test_a_worker_that_dies_is_not_left_out(project: Project, summary: Path) -> None:
    project.own_gate(
        "import os\n@pytest.mark.gate\ndef test_fidelity(ane_shard):\n    os._exit(1)\n"
    )
    result = project.packages(good="none").pytester.runpytest_subprocess(
        "-n1", "--max-worker-restart=0", "--ane-shards=all", "-m", "gate", "--ane-cache=cache"
    )
    result.stdout.fnmatch_lines(["::error title=gates/test_fidelity.py*crashed*"])
    assert "## ane gates: 1 error, 2 not run\n" in summary.read_text()


def test_what_cannot_be_collected_is_not_left_out(project: Project, summary: Path) -> None:
    project.own_gate("import nothing_of_this_name\n")
    result = project.packages(good="none").pytester.runpytest_inprocess("--ane-shards=all")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["::error title=gates/test_fidelity.py error::ModuleNotFoundError: *of_this_name*"]
    )
    assert "## ane gates: 1 error, 3 not run\n" in summary.read_text()


# A package whose names are commands to a terminal or a CI: a run on GitHub obeys none of them.


@pytest.mark.slow
@pytest.mark.parametrize("more", [("-v",), ("-n1",)])
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_a_package(
    project: Project, name: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    package = hostile_package(project.path / "one", name)
    other = hostile_package(project.path / "other", "sound")
    project.manifest(
        f'[models.own.shard.a]\nartifact = "{package}"\nreference = "{other}"\n'
        f'[models.own.shard.b]\nartifact = "{package}"\nreference = "none"\n'
        "[models.own.policy.compression]\nmax-bytes = 1\n"
    )
    result = project.gate("--junitxml=out.xml", "--ane-report=out.jsonl", "-rA", *more)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*INTERNAL*")
    lines = [*result.outlines, *result.errlines]
    ours = [line for line in lines if line.startswith(("::error ", "::notice ", "::warning "))]
    assert ours
    check_lines(line for line in lines if line not in ours)
    assert max(map(len, ours)) < 13_000
    check_lines((project.path / "summary.md").read_text().split("\n"), longest=10_000)
    ElementTree.parse(project.path / "out.xml")
    assert read_run(project.path / "out.jsonl").rows
