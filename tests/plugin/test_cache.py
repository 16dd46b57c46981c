"""`--ane-cache` and its ini twin: what is built once is not built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.conftest import Project, refused

KINDS = ("artifacts", "recordings")


def entries(cache: Path) -> list[Path]:
    return sorted(path for kind in KINDS for path in (cache / kind).iterdir())


@pytest.mark.drawn
@pytest.mark.slow
def test_the_second_run_builds_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.llama()
    project.gate("--ane-cache=cache", shards="head.0").assert_outcomes(passed=3, deselected=1)
    before = entries(project.path / "cache")
    assert {path.parent.name for path in before} == set(KINDS)

    def build(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr("pytest_ane.make.shard._build", build)
    monkeypatch.setattr("pytest_ane.project.models.open_source", build)
    project.gate("--ane-cache=cache", shards="head.0").assert_outcomes(passed=3, deselected=1)
    assert entries(project.path / "cache") == before


def test_the_ini_value_is_relative_to_the_ini_file(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.packages(good="none").pytester.makeini("[pytest]\nane_cache = kept/here\n")
    (project.path / "sub").mkdir()
    monkeypatch.chdir(project.path / "sub")
    result = project.pytester.runpytest_inprocess("--ane-shards=all", "-m", "gate")
    result.assert_outcomes(passed=3, deselected=1)
    assert (project.path / "kept/here/artifacts").is_dir()


def test_a_cache_that_cannot_be_written_fails_with_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def refuse(path: Path, *args: object) -> None:
        if path.name.startswith(".write-"):
            raise PermissionError(13, "Permission denied")
        touch(path, *args)

    monkeypatch.setattr(Path, "touch", refuse)
    result = project.llama().gate("--ane-cache=cache", "-k", "placement", shards="L01")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["The cache folder *cache cannot be written (Permission denied);*"])


@pytest.mark.slow
def test_an_error_budget_is_measured_where_fidelity_is_asked(project: Project) -> None:
    budgets = project.path / "cache" / "budgets"
    project.llama().gate("--ane-cache=cache", "--ane-shards=L00", "-k", "placement")
    assert list(budgets.iterdir()) == []
    project.gate("--ane-cache=cache", "--ane-shards=L00").assert_outcomes(passed=3)
    assert len(list(budgets.iterdir())) == 1


# A run touches nothing of the user's, whatever folder is named as the cache.


def test_a_folder_with_other_content_is_refused_and_left_as_it_is(project: Project) -> None:
    thesis = project.packages(good="none").path / "tmp" / "thesis" / "chapter.tex"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("years of work")
    before = sorted(project.path.rglob("*"))
    refused(
        project.gate("--ane-cache=."),
        "* is no cache folder of pytest-ane: it holds shards.toml and no CACHEDIR.TAG of *",
    )
    assert sorted(project.path.rglob("*")) == before
    assert thesis.read_text() == "years of work"
