"""`--ane-shards`: which gates run."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project, refused


def listed(project: Project, selection: str) -> list[str]:
    """Ids of shards whose placement would be asked; the source is not opened."""
    result = project.llama().gate("--co", "-q", shards=selection)
    assert result.ret == 0
    lines = [line for line in result.outlines if "test_placement[" in line]
    return [line.partition("[")[2].rstrip("]") for line in lines]


@pytest.mark.parametrize(
    ("selection", "shards"),
    [
        ("L01", ["mini:L01"]),
        ("L00-L01", ["mini:L00", "mini:L01"]),
        ("head*", ["mini:head.0", "mini:head.1"]),
        ("head*,L00", ["mini:L00", "mini:head.0", "mini:head.1"]),
        ("mini:L01", ["mini:L01"]),
        ("mini:head.0-head.1", ["mini:head.0", "mini:head.1"]),
        ("all", ["mini:L00", "mini:L01", "mini:head.0", "mini:head.1"]),
        ("sample:2", ["mini:L00", "mini:head.1"]),
        ("L01,L01", ["mini:L01"]),
    ],
)
def test_a_selection_names_shards(project: Project, selection: str, shards: list[str]) -> None:
    assert listed(project, selection) == shards


def test_three_gates_of_one_shard_pass(project: Project) -> None:
    result = project.llama().gate(shards="L01")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["ane: L01 · shards 1 of 4 · backend cpu · *"])


def test_the_whole_chain_is_also_asked_for_its_behaviour(project: Project) -> None:
    result = project.llama().gate()
    result.assert_outcomes(passed=13)
    result.stdout.fnmatch_lines(["gates/test_behaviour.py . *", "passed   mini  *behaviour *"])


@pytest.mark.parametrize("selection", ["L1", "tiny:L00", "L01-L00", "sample:none", "", " , "])
def test_a_wrong_selection_is_one_line(project: Project, selection: str) -> None:
    """Their sentences are the business of `tests/manifest/test_selection.py`."""
    refused(project.llama().gate(shards=selection), "*[.']")


def test_without_the_option_only_the_projects_own_tests_run(project: Project) -> None:
    project.llama().pytester.makepyfile("def test_own(): pass")
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("ane: *")


def test_the_projects_own_tests_run_beside_the_gates(project: Project) -> None:
    project.packages(good="none").pytester.makepyfile("def test_own(): pass")
    project.run("--ane-shards=good").assert_outcomes(passed=4, deselected=1)


def test_the_marker_alone_selects_nothing(project: Project) -> None:
    project.llama().pytester.makepyfile("def test_own(): pass")
    result = project.pytester.runpytest_inprocess("-m", "gate")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes(deselected=1)


def test_own_gates_without_the_option_are_deselected_not_skipped(project: Project) -> None:
    from pytest_ane.cli import main

    assert main(["init", str(project.path)]) == 0
    result = project.pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes(deselected=9)
