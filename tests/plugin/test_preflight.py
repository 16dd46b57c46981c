"""What is said before the first build, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ane.make import shard as building
from pytest_ane.make.record import BuildRecord
from pytest_ane.mlprogram.digests import key_digest
from tests.plugin.conftest import Project

BUDGET = "\n[models.mini.policy.compression]\nmax-bytes = {}\n"


@pytest.fixture(autouse=True)
def _built_once(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A shard that goes into another empty cache is copied: what is built is not the point here."""
    folder, build = tmp_path_factory.getbasetemp() / "built", building._build
    folder.mkdir(exist_ok=True)

    def copied(shard: Any, key: dict[str, Any], model: Any, target: Path, *told: Any) -> None:
        entry = folder / key_digest(key)
        if not entry.is_dir():
            build(shard, key, model, target, *told)
            shutil.copytree(target, entry)
            return
        shutil.copytree(entry, target, dirs_exist_ok=True)
        replace(BuildRecord.read(target), shard=shard.qualified).write(target)

    monkeypatch.setattr(building, "_build", copied)


@pytest.mark.slow
def test_what_will_be_built_and_where(project: Project) -> None:
    project.llama(BUDGET.format('"0.4 MB"'))
    first = project.gate("--ane-cache=cache", "--ane-builds=3", "-k", "placement", shards="head*")
    first.stdout.fnmatch_lines(
        [
            "ane: 2 shards to build, 3 at once · cache *cache*: about * needed, * free*",
            "ane: python 3.*, coremltools 9.*, torch *, pytest-xdist *",
            "gates/*",
        ]
    )
    second = project.gate("--ane-cache=cache", "-k", "placement", shards="all")
    second.stdout.fnmatch_lines(["ane: 2 shards to build, *"])
    third = project.gate("--ane-cache=cache", "-k", "placement", shards="all")
    third.stdout.no_fnmatch_line("ane: * to build*")


def test_a_run_without_gates_builds_nothing(project: Project) -> None:
    project.llama().pytester.makepyfile(test_own="def test_own(): pass")
    result = project.run("--ane-shards=all", "--ane-cache=cache", "-k", "test_own")
    result.assert_outcomes(passed=1, deselected=13)
    result.stdout.no_fnmatch_line("ane: * to build*")


def test_a_disk_that_is_plainly_too_small_is_refused_before_anything_is_built(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("built")

    monkeypatch.setattr("pytest_ane.make.shard._build", build)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    project.llama(BUDGET.format('"1 GB"'))
    result = project.gate("--ane-cache=cache", "-k", "placement", shards="L00-L01,head.0")
    result.assert_outcomes(errors=3, deselected=7)
    result.stdout.fnmatch_lines(
        [
            "The disk is too small for 3 shards still to be built: cache *",
            "not run: the disk is too small, as the first failure says",
        ]
    )


@pytest.mark.slow
def test_finished_shards_are_gated_on_a_disk_that_is_too_small(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.llama().gate("--ane-cache=cache", shards="L01").assert_outcomes(passed=3, deselected=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    result = project.gate("--ane-cache=cache", shards="L00-L01")
    result.assert_outcomes(passed=3, errors=3, deselected=1)
