"""A project without pytest: packages, what may be built, and the folders it uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest import Manifest, Model, Shard
from pytest_ane.mlprogram.errors import CacheError, NotRunError
from pytest_ane.project.progress import Progress
from pytest_ane.project.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two packages of one's own."""
    shards = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.mlpackage").mkdir()
        (tmp_path / f"{name}.mlpackage" / "Manifest.json").write_text("{}")
        package = tmp_path / f"{name}.mlpackage"
        shards.append(Shard(model="own", id=name, artifact=package, reference="none"))
    models = (Model(name="own", shards=tuple(shards)),)
    manifest = Manifest(path=tmp_path / "shards.toml", models=models)
    return Project(manifest, manifest.shards, tmp_path / "cache")


def test_packages_of_one_s_own_are_looked_up(project: Project, tmp_path: Path) -> None:
    shown: list[str] = []
    project.progress = Progress(2, shown.append)
    a, b = project.shards
    assert project.package(a) == project.artifact(a).path == tmp_path / "a.mlpackage"
    assert project.open_shard(b).artifact is project.artifact(b)
    assert [text.partition(" ")[0] for text in shown if text] == ["own:a", "own:b"]
    assert project.complete_models == []


def test_a_shard_that_may_not_be_built_is_not_looked_up(project: Project) -> None:
    def refuse(shard: Shard) -> None:
        if shard.id == "b":
            raise NotRunError("not run: canary a failed placement")

    project.before_build = refuse
    a, b = project.shards
    project.artifact(a)
    with pytest.raises(NotRunError, match="canary a"):
        project.artifact(b)


def test_nothing_is_written_to_a_folder_of_someone_else_s(project: Project, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").touch()
    with pytest.raises(CacheError, match=r"thesis\.tex"):
        project.use().__enter__()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["thesis.tex"]


def test_the_backend_names_shards_by_id(project: Project) -> None:
    said: list[str] = []
    project.notify = said.append
    package = project.artifact(project.shards[0]).path
    project._notify(f"{package} is compiled again")
    assert said == ["own:a is compiled again"]
