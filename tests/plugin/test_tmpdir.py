"""`[run] tmpdir`: where builds keep temporary files; those of workers, too: test_xdist.py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.plugin.conftest import Project, refused


def llama(project: Project, tmpdir: str) -> Project:
    return project.llama().head(f'[run]\ntmpdir = "{tmpdir}"\n')


def test_it_is_made_and_used_and_left_empty(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    seen: list[Path] = []

    def build(*_: object) -> None:
        seen.append(Path(tempfile.gettempdir()))

    monkeypatch.setattr("pytest_ane.make.shard._build", build)
    llama(project, "scratch/here").gate("--ane-cache=cache", "-k", "placement", shards="L01")
    assert seen[0].parent == project.path / "scratch" / "here"
    assert list(seen[0].parent.iterdir()) == []
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


def test_a_folder_that_cannot_be_made_is_a_wrong_manifest(project: Project) -> None:
    (project.path / "file").touch()
    refused(
        llama(project, "file/here").gate(shards="L01"),
        "shards.toml: [[]run[]] tmpdir: *file/here cannot be written (Not a directory); "
        "name another folder.",
    )
