"""A shard compressed from its uncompressed package is the shard that is built at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ane.build import Cache, build_shard, compressed, uncompressed
from pytest_ane.families import get_family
from pytest_ane.families.base import Cut
from pytest_ane.manifest import Compression, Linear, Palettize, Shard, Uncompressed
from pytest_ane.sources.gguf import GGUFSource
from tests.plugin.projects import make_llama

MIXED = Palettize.model_validate(
    {"nbits": 6, "group_size": 16, "overrides": [{"weights": "up*", "method": "linear"}]}
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = GGUFSource(make_llama(tmp_path_factory.mktemp("model") / "mini.gguf"))
    return get_family("llama").open_model(source, Cut(("L00", "L01", "head.0"), 8))


def shard(compression: Compression) -> Shard:
    return Shard(model="m", id="L00", family="llama", max_tokens=8, compression=compression)


def closed() -> Any:
    raise AssertionError("nothing is to be converted")


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [Palettize(nbits=6, group_size=16), Linear(), MIXED, Uncompressed()]
)
def test_the_bytes_are_the_same(asked: Any, model: Any, tmp_path: Path) -> None:
    cold, warm = Cache(tmp_path / "cold"), Cache(tmp_path / "warm")
    whole = build_shard(shard(asked), cold, identity={}, model=lambda: model)
    plain = uncompressed(shard(asked), warm, identity={}, model=lambda: model)
    made = build_shard(shard(asked), warm, identity={}, model=closed, source=plain)
    assert made.digest == whole.digest
    assert made.path.parent.name == whole.path.parent.name
    assert made.record is not None
    assert whole.record is not None
    assert made.record.distortions == whole.record.distortions
    assert made.record.description == whole.record.description
    assert made.record.key == whole.record.key
    (tmp_path / "own").mkdir()
    assert compressed(shard(asked), plain, tmp_path / "own").digest == whole.digest
