"""What a run sends to its workers, and errors that come back."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pytest_ane.cluster.job import Job, inputs, needs_weights, unpacked_job
from pytest_ane.cluster.tasks import FullDiskError
from pytest_ane.manifest import load
from pytest_ane.mlprogram import errors
from pytest_ane.mlprogram.errors import AneError, UnprovenError
from pytest_ane.project.project import Project

MANIFEST = """
[models.mini]
family = "llama"
source = { path = "weights/mini.gguf" }
shards = "L00-L01"

[models.own.shard.block]
artifact = "packages/block.mlpackage"
reference = "/elsewhere/block.mlpackage"
"""


def test_paths_below_the_manifest_are_the_worker_s(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "shards.toml").write_text(MANIFEST)
    manifest = load(here / "shards.toml")
    job = Job(
        manifest=manifest,
        shards=manifest.shards,
        identities={"mini": {"source": "1"}},
        judged=frozenset({"mini:L00"}),
        store="",
        units="CPU_AND_NE",
        device_timeout=None,
        memory=None,
        seconds=None,
    )
    sent = unpacked_job(job.packed(), there)
    shards = {shard.qualified: shard for shard in sent.shards}
    source = sent.manifest.model_of("mini").source
    assert source is not None
    assert source.path == there / "weights/mini.gguf"
    assert shards["own:block"].artifact == there / "packages/block.mlpackage"
    assert shards["own:block"].reference == Path("/elsewhere/block.mlpackage")
    assert unpacked_job(job.packed(), here) == job


def test_what_a_checkout_gives_is_all_that_shards_are_built_of_or_compared_with(
    tmp_path: Path,
) -> None:
    (tmp_path / "shards.toml").write_text(
        MANIFEST + '\n[models.mini.shard.L00]\nartifact = "packages/mine.mlpackage"\n'
        'reference = "float32"\n'
    )
    manifest = load(tmp_path / "shards.toml")
    package = tmp_path / "packages" / "block.mlpackage"
    package.mkdir(parents=True)
    (package / "Manifest.json").write_text("{}")
    of_own = [shard for shard in manifest.shards if shard.artifact is not None]
    assert [needs_weights(shard) for shard in of_own] == [True, False]
    given = inputs(Project(manifest=manifest, shards=tuple(of_own)))
    assert set(given.lacking) == {"mini", "mini:L00", "own:block"}
    assert "mini.gguf" in given.lacking["mini"]
    assert given.digests == {}


def _kinds(base: type[AneError] = AneError) -> list[type[AneError]]:
    return [base, *(kind for each in base.__subclasses__() for kind in _kinds(each))]


@pytest.mark.parametrize("kind", [k for k in _kinds() if k.__module__ == errors.__name__])
def test_errors_travel_as_they_are(kind: type[AneError]) -> None:
    sent = pickle.loads(pickle.dumps(kind("what is wrong; what to do")))
    assert type(sent) is kind
    assert str(sent) == "what is wrong; what to do"


def test_what_errors_know_travels_with_them() -> None:
    unproven = pickle.loads(pickle.dumps(UnprovenError("old", "stale")))
    assert unproven.kind == "stale"
    full = pickle.loads(pickle.dumps(FullDiskError("full", "tcp://a:1")))
    assert (str(full), full.address) == ("full", "tcp://a:1")
