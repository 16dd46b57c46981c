"""A shard for each function of a package, as soon as a project is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.manifest import Manifest, package_manifest
from pytest_ane.project.entries import expanded, read_manifest
from tests import multifunction

Read = Callable[[str], Manifest]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return multifunction.make(tmp_path_factory.mktemp("functions"))


@pytest.fixture
def read(tmp_path: Path, packages: dict[str, Path]) -> Read:
    """Reads a text as `shards.toml`; `{right}` and others stand for packages."""

    def written(text: str) -> Manifest:
        path = tmp_path / "shards.toml"
        path.write_text(text.format_map({name: str(path) for name, path in packages.items()}))
        return read_manifest(path)

    return written


DECODER = '[models.m.shard.decoder]\nartifact = "{right}"\nreference = "{reference}"\n'
HEAD = '[models.m.shard.head]\nartifact = "{single}"\nreference = "none"\n'


@pytest.mark.slow
def test_each_function_is_a_shard(read: Read) -> None:
    model = read(DECODER + HEAD).model_of("m")
    assert model.ids == ("decoder[decode]", "decoder[verify4]", "head")
    assert [shard.function for shard in model.shards] == ["decode", "verify4", None]
    assert model.shards[1].qualified == "m:decoder[verify4]"
    assert model.shards[0].reference == model.shards[1].reference
    assert not any(shard.ungated for shard in model.shards)


@pytest.mark.slow
def test_of_a_compiled_model_too(packages: dict[str, Path]) -> None:
    twin = multifunction.compiled(packages["right"])
    (model,) = expanded(package_manifest(twin)).models
    assert model.ids == ("multi-right[decode]", "multi-right[verify4]")


@pytest.mark.drawn
@pytest.mark.slow
def test_a_table_chooses_one(read: Read) -> None:
    (shard,) = read(DECODER + 'function = "verify4"\n').shards
    assert (shard.id, shard.function, shard.ungated) == ("decoder", "verify4", ("decode",))


def test_two_tables_choose_two(read: Read) -> None:
    other = DECODER.replace("decoder", "other") + 'function = "decode"\n'
    shards = read(DECODER + 'function = "verify4"\n' + other).shards
    assert [(s.id, s.function, s.ungated) for s in shards] == [
        ("decoder", "verify4", ()),
        ("other", "decode", ()),
    ]


def test_canaries_are_all_functions_of_theirs(read: Read) -> None:
    model = read('[models.m]\ncanary = "decoder"\n' + DECODER + HEAD).model_of("m")
    assert model.canary == ("decoder[decode]", "decoder[verify4]")


@pytest.mark.parametrize("artifact", ["gone.mlpackage", "empty.mlpackage"])
def test_what_cannot_be_read_stays_one(read: Read, tmp_path: Path, artifact: str) -> None:
    (tmp_path / "empty.mlpackage").mkdir()
    (shard,) = read(DECODER.replace("{right}", artifact)).shards
    assert (shard.id, shard.function) == ("decoder", None)


def test_a_shard_of_a_chain_stays_one(read: Read) -> None:
    model = '[models.m]\nbuilder = "json:loads"\nshards = "decoder"\n'
    (shard,) = read(model + DECODER).shards
    assert (shard.id, shard.function) == ("decoder", None)
