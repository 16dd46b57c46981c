"""Shards: compressed from an uncompressed package or built at once, and canonical packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.make import Cache, build_shard, compressed, uncompressed
from pytest_ane.make.shard import canonicalize
from pytest_ane.manifest import Compression, Linear, Palettize, Shard, Uncompressed
from pytest_ane.mlprogram.digests import tree_digest, tree_files
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.models.families import Cut
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources._gguf import GGUFSource
from tests.mlprogram.same import differences
from tests.packages import save_conv
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
    doing: list[str] = []
    whole = build_shard(shard(asked), cold, identity={}, model=lambda: model, step=doing.append)
    steps = ["converting", "compressing", "measuring its errors"]
    assert doing == [s for s in steps if s != "compressing" or asked != Uncompressed()]
    plain = uncompressed(shard(asked), warm, identity={}, model=lambda: model)
    made = build_shard(shard(asked), warm, identity={}, model=closed, source=plain)
    assert made.digest == whole.digest
    assert made.path.parent.name == whole.path.parent.name
    assert made.record is not None
    assert whole.record is not None
    assert made.record.weights == whole.record.weights
    assert made.record.description == whole.record.description
    assert made.record.key == whole.record.key
    (tmp_path / "own").mkdir()
    assert compressed(shard(asked), plain, tmp_path / "own").digest == whole.digest


ROOT = Path(__file__).parents[2]
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "conv.mlpackage"
    save_conv(path)
    return path


@pytest.fixture
def package(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "conv.mlpackage"))


def otherwise(package: Path) -> None:
    """As another machine would have saved it on another day."""
    file, message = parse_package(package)
    metadata = message.description.metadata.userDefined
    metadata["com.github.apple.coremltools.conversion_date"] = "2031-01-01"
    source = metadata["com.github.apple.coremltools.source"].partition("+")[0]
    metadata["com.github.apple.coremltools.source"] = f"{source}+cu130"
    build = message.mlProgram.attributes["buildInfo"].immediateValue.dictionary
    for pair in build.values:
        texts = pair.value.immediateValue.tensor.strings.values
        if texts[0].startswith("2."):
            texts[0] = source.removeprefix("torch==")
    backwards = type(message)()
    backwards.CopyFrom(message)
    backwards.description.metadata.userDefined.clear()
    for key in reversed(sorted(metadata)):
        backwards.description.metadata.userDefined[key] = metadata[key]
    file.write_bytes(backwards.SerializeToString())
    manifest = package / "Manifest.json"
    content = json.loads(manifest.read_text())
    items = content["itemInfoEntries"]
    content["itemInfoEntries"] = {f"ID-{old}": item for old, item in reversed(items.items())}
    content["rootModelIdentifier"] = f"ID-{content['rootModelIdentifier']}"
    manifest.write_text(json.dumps(content))


def test_what_differs_by_machine_and_day_is_gone(saved: Path, package: Path) -> None:
    otherwise(package)
    before = tree_files(package)
    canonicalize(package)
    one, other = tree_files(package), Path(package.parent, "other.mlpackage")
    shutil.copytree(saved, other)
    canonicalize(other)
    assert one == tree_files(other)
    assert {name for name in one if one[name] != before[name]} == set(one) - {WEIGHTS}
    canonicalize(package)
    assert tree_files(package) == one


def test_the_program_and_what_people_read_in_it_stay(saved: Path, package: Path) -> None:
    canonicalize(package)
    was: Any = read_model(saved)
    model: Any = read_model(package)
    assert (model.inputs, model.outputs) == (was.inputs, was.outputs)
    assert differences(was, model) == []
    prefix = "com.github.apple.coremltools."
    assert set(was.metadata) - set(model.metadata) == {f"{prefix}conversion_date"}
    assert model.metadata[f"{prefix}version"] == was.metadata[f"{prefix}version"]
    public = was.metadata[f"{prefix}source"].partition("+")[0]
    assert model.metadata[f"{prefix}source"] == public
    assert b"+" not in parse_package(package)[1].mlProgram.SerializeToString()


def test_a_damaged_package(package: Path) -> None:
    parse_package(package)[0].write_bytes(b"\xff\xff")
    with pytest.raises(ProgramError, match="cut short or damaged"):
        canonicalize(package)


def build_all(folder: Path, seed: str, order: str) -> Any:
    """Digests of the shards of `builds`, built in a process of its own."""
    folder.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": seed,
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": seed,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.make.builds", "cache", order],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_two_processes_build_the_same_bytes(tmp_path: Path) -> None:
    """Another hash seed, folder, number of threads, and the other way round."""
    one = build_all(tmp_path / "one", "1", "forwards")
    other = build_all(tmp_path / "elsewhere", "2", "backwards")
    assert one == other
    assert len(set(one.values())) == len(one) == 9
    from pytest_ane.make.coremltools_quiet import import_coremltools

    ct = import_coremltools()
    for package in (tmp_path / "one" / "cache" / "artifacts").glob("*/shard.mlpackage"):
        assert tree_digest(package) in one.values()
        assert ct.models.MLModel(str(package), skip_model_load=True).is_package
        assert read_model(package).program
