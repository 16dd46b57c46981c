"""`canary`: its gates run first, and unless they pass, no other shard is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.conftest import Project
from tests.plugin.projects import COUNT

LIMIT = '\n[models.mini.shard."{}".policy.compression]\nmax-bytes = {}\n'
SHARDS = ("L00", "L01", "head.0", "head.1")


def own(project: Project, canary: str = '["L01"]', **packages: str) -> Project:
    """A model of packages, each with the name of one of the workshop's."""
    text = f"[models.own]\ncanary = {canary}\n"
    for shard, package in packages.items():
        path = project.workshop.packages[package]
        text += f'[models.own.shard.{shard}]\nartifact = "{path}"\nreference = "none"\n'
    return project.manifest(text)


def mini(project: Project, max_bytes: int) -> Project:
    """The tiny Llama, its canary L01 with a budget."""
    project.llama(LIMIT.format("L01", max_bytes)).replace(
        "max-tokens", 'canary = "L01"\nmax-tokens'
    )
    project.pytester.makeconftest(COUNT)
    return project


def statuses(result: pytest.RunResult) -> list[str]:
    """Outcomes with their tests, in the order they were run, of a run with -v."""
    return [line for line in result.outlines if line.startswith("gates/") and "[" in line]


def test_canaries_come_first_and_models_last(project: Project) -> None:
    own(project, '["c"]', a="good", b="other", c="good")
    result = project.gate("-v")
    result.assert_outcomes(passed=9, deselected=1)
    assert ["own:c" in line for line in statuses(result)] == [True] * 3 + [False] * 6
    result.stdout.fnmatch_lines(["ane: all · shards 3 of 3 · * · canary c first*"])


@pytest.mark.parametrize(
    ("package", "gate", "complaint"),
    [("ineligible", "placement", "failed placement"), ("nan", "fidelity", "failed fidelity")],
)
def test_others_are_not_run_when_it_fails(
    project: Project, package: str, gate: str, complaint: str
) -> None:
    own(project, L00="good", L01=package, L02="good")
    result = project.gate()
    result.assert_outcomes(passed=2, failed=1, errors=6, deselected=1)
    result.stdout.fnmatch_lines(
        [
            f"not run: canary L01 {complaint}",
            "=*= ane gates =*=",
            f"FAILED   own:L01  {gate} *",
            f"NOT RUN  own:L00  compression canary L01 {complaint}",
            "... and 3 more not run (-v shows all)",
        ]
    )


def test_a_canary_that_is_unproven_fails_the_others_unless_that_is_allowed(
    project: Project,
) -> None:
    claimed = 'weightless.mlpackage"\ncompression = { method = "palettize", nbits = 4 }'
    own(project, L00="good", L01="weightless").replace('weightless.mlpackage"', claimed)
    result = project.gate()
    result.stdout.fnmatch_lines(["not run: canary L01 left compression unproven"])
    result.assert_outcomes(passed=2, failed=1, errors=3, deselected=1)
    project.gate("--ane-unproven=allow").assert_outcomes(passed=6, deselected=1)


def test_a_canary_that_cannot_be_asked_fails_the_others(project: Project) -> None:
    own(project, L00="good", L01="good")
    manifest = project.path / "shards.toml"
    manifest.write_text(
        manifest.read_text().replace("good.mlp", "gone.mlp").replace("gone", "good", 1)
    )
    result = project.gate()
    result.assert_outcomes(errors=6, deselected=1)
    result.stdout.fnmatch_lines(["not run: canary L01 has no verdict on *gone.mlpackage*does not*"])


@pytest.mark.drawn
@pytest.mark.parametrize(
    "options",
    [
        ("-k", "not L01"),
        ("-k", "compression and L00"),
        ("--deselect=gates/test_placement.py::test_placement[own:L01]",),
        ("gates",),
    ],
)
def test_it_holds_where_its_own_gates_are_left_out(
    project: Project, options: tuple[str, ...]
) -> None:
    own(project, L00="good", L01="ineligible")
    options = () if options == ("gates",) else options
    result = project.gate(*options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["not run: canary L01 failed placement"])
    result.stdout.no_fnmatch_line("passed   own:L00*")


def test_a_selection_without_the_canary_is_taken_at_its_word(project: Project) -> None:
    own(project, L00="good", L01="ineligible", L02="good")
    result = project.gate(shards="L00")
    result.assert_outcomes(passed=3, deselected=1)
    result.stdout.fnmatch_lines(["ane: L00 · shards 1 of 3 · * · canary L01 not selected*"])


def test_canaries_do_not_wait_for_one_another_nor_for_other_models(project: Project) -> None:
    own(project, '["L00", "L01"]', L00="good", L01="ineligible", L02="good")
    manifest = project.path / "shards.toml"
    text = manifest.read_text()
    manifest.write_text(text + text.replace("own", "other").replace("ineligible", "good"))
    result = project.gate("-v")
    result.assert_outcomes(passed=3 + 2 + 9, failed=1, errors=3, deselected=1)
    first = statuses(result)[:12]
    assert all("L02" not in line for line in first)


@pytest.mark.slow
def test_nothing_else_is_built(project: Project) -> None:
    result = mini(project, 10).gate("--ane-cache=cache")
    assert result.parseoutcomes()["passed"] == 2
    assert project.built() == ["L01"]
    result.stdout.fnmatch_lines(
        ["NOT RUN  mini *behaviour *canary L01 failed compression"], consecutive=False
    )


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["load", "loadfile"])
def test_nothing_else_is_built_by_any_worker(project: Project, mode: str) -> None:
    mini(project, 10)
    result = project.pytester.runpytest_subprocess(
        "-n2", f"--dist={mode}", "--ane-shards=all", "-m", "gate", "--ane-cache=cache"
    )
    result.assert_outcomes(passed=2, failed=1, errors=10)
    assert project.built() == ["L01"]
    result.stdout.fnmatch_lines(["not run: canary L01 failed compression"])


@pytest.mark.drawn
@pytest.mark.heavy
def test_a_worker_that_dies_over_the_canary_leaves_no_one_waiting(project: Project) -> None:
    mini(project, 10_000_000)
    die = "    if not Path('died').exists():\n        Path('died').touch()\n        os._exit(1)\n"
    text = f"import os\n{COUNT}".replace("    build(given", f"{die}    build(given")
    (project.path / "conftest.py").write_text(text)
    result = project.pytester.runpytest_subprocess(
        "-n2", "--ane-shards=all", "-m", "gate", "--ane-cache=cache", "-k", "not behaviour"
    )
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (11, 1)
    assert Path(project.path / "died").exists()
    assert set(project.built()) == set(SHARDS)
