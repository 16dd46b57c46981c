"""`[run] tmpdir`: where builds keep temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.plugin.conftest import Project

SHOW = """
import tempfile
from pathlib import Path
from pytest_ane.build import shard

build = shard._build

def shown(*arguments):
    with Path(__file__).with_name("tmp.txt").open("a") as file:
        file.write(tempfile.gettempdir() + "\\n")
    build(*arguments)

shard._build = shown
"""


def llama(project: Project, tmpdir: str) -> Project:
    project.llama()
    manifest = project.path / "shards.toml"
    manifest.write_text(f'[run]\ntmpdir = "{tmpdir}"\n' + manifest.read_text())
    return project


def test_it_is_made_and_used_and_left_empty(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    seen: list[Path] = []

    def build(*_: object) -> None:
        seen.append(Path(tempfile.gettempdir()))

    monkeypatch.setattr("pytest_ane.build.shard._build", build)
    llama(project, "scratch/here").gate("--ane-cache=cache", "-k", "placement", shards="L01")
    assert seen[0].parent == project.path / "scratch" / "here"
    assert list(seen[0].parent.iterdir()) == []
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


def test_a_folder_that_cannot_be_made_is_a_wrong_manifest(project: Project) -> None:
    (project.path / "file").touch()
    result = llama(project, "file/here").gate(shards="L01")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: shards.toml: [[]run[]] tmpdir: *file/here cannot be written (Not a directory); "
            "name another folder."
        ]
    )


@pytest.mark.slow
def test_workers_use_it_too(project: Project) -> None:
    llama(project, "scratch").pytester.makeconftest(SHOW)
    result = project.pytester.runpytest_subprocess(
        "-n2", "--ane-shards=head*", "-m", "gate", "-k", "placement", "--ane-cache=cache"
    )
    result.assert_outcomes(passed=2)
    folders = (project.path / "tmp.txt").read_text().split()
    assert {Path(folder).parent for folder in folders} == {project.path / "scratch"}
