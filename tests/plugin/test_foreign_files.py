"""A run touches nothing of the user's, whatever folder is named as the cache."""

from __future__ import annotations

from tests.plugin.conftest import Project, refused


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


def test_other_content_in_a_cache_stays(project: Project) -> None:
    project.packages(good="none").gate("--ane-cache=cache").assert_outcomes(passed=3, deselected=1)
    thesis = project.path / "cache" / "tmp" / "thesis"
    thesis.mkdir()
    project.gate("--ane-cache=cache").assert_outcomes(passed=3, deselected=1)
    assert thesis.is_dir()
