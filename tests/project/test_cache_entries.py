"""Every kind of entry that a model keeps in the cache: an edit by hand changes no number."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from pytest_ane.make.shared_store import SEAL
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.digests import remembered
from pytest_ane.probes.recording import load, read_metadata
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import Project, read_project
from tests.plugin.projects import LLAMA, make_llama

pytestmark = pytest.mark.slow

TWO_BITS = """\
[models.mini.compression]
method = "palettize"
nbits = 2
mode = "uniform"
weight_threshold = 0
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with everything built: two packages, their probes, hidden states, golden logits."""
    folder = tmp_path_factory.mktemp("warm")
    manifest = LLAMA.format(source=make_llama(folder / "mini.gguf")) + TWO_BITS
    (folder / "shards.toml").write_text(manifest)
    project = read_project(folder / "shards.toml", folder / "cache", backend_name="cpu")
    for name in USES:
        use(project, name)
    return folder


@pytest.fixture
def root(warm: Path, tmp_path: Path) -> Path:
    """A copy of its cache."""
    return Path(shutil.copytree(warm / "cache", tmp_path / "cache"))


def reopened(warm: Path, root: Path, told: list[str]) -> Project:
    return read_project(warm / "shards.toml", root, backend_name="cpu", notify=told.append)


def shards(project: Project) -> tuple[Shard, Shard]:
    first, second, *_ = project.shards
    return first, second


def use_package(project: Project) -> object:
    artifacts = [project.artifact(shard) for shard in shards(project)]
    return [
        (artifact.digest, str(artifact.record and artifact.record.weights))
        for artifact in artifacts
    ]


def use_probes(project: Project) -> object:
    cases = [case for shard in shards(project) for case in project.model("mini").cases(shard)]
    return [{k: v.tolist() for k, v in case.expected.items()} for case in cases]


def use_hidden(project: Project) -> object:
    model = project.model("mini")
    assert isinstance(model, OpenModel)
    return [array.tolist() for array in model.states("counting", "L01")]


def use_golden(project: Project) -> object:
    model = project.model("mini")
    assert isinstance(model, OpenModel)
    return [(prompt.logits.tolist(), prompt.greedy) for prompt in model.golden]


USES = {
    "package": use_package,
    "probes": use_probes,
    "hidden states": use_hidden,
    "golden logits": use_golden,
}


def use(project: Project, name: str) -> object:
    """What a gate takes from the cache."""
    with remembered(project.cache.root / "digests"):
        return USES[name](project)


def entries(root: Path, name: str) -> list[Path]:
    """The entries of a use: of `package` and `probes` the first two shards'."""
    if name == "package":
        return sorted((root / "artifacts").iterdir())
    of = {
        "probes": lambda about, tensors: "probes" in about,
        "hidden states": lambda about, tensors: "counting/L00/in" in tensors,
        "golden logits": lambda about, tensors: "golden" in about,
    }[name]
    recordings = sorted((root / "recordings").iterdir())
    return [path for path in recordings if of(read_metadata(path), load(path)[0])]


def numbers(entry: Path) -> Path:
    """The file with an entry's weights or tensors."""
    return [*entry.rglob("weight.bin"), *entry.rglob("*.safetensors")][0]


def flip(entry: Path) -> None:
    """A bit of a weight or a tensor, with the times of the file put back."""
    file = numbers(entry)
    stat = file.stat()
    data = bytearray(file.read_bytes())
    data[-3] ^= 64
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("name", USES)
def test_an_edit_changes_no_number(warm: Path, root: Path, name: str) -> None:
    before = use(reopened(warm, warm / "cache", []), name)
    first, *_ = entries(root, name)
    flip(first)
    told: list[str] = []
    assert use(reopened(warm, root, told), name) == before
    (sentence,) = told
    assert sentence.startswith("mini")
    assert f"({first.parent.name}/{first.name[:16]}) was damaged or edited: " in sentence
    assert sentence.endswith("; it is made again.")
    assert use(reopened(warm, root, told), name) == before
    assert told == [sentence]


@pytest.mark.parametrize("value", ["", "false", "true"])
def test_in_ci_every_file_is_read(
    warm: Path, root: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """A list of digests that came with the cache is not believed there."""
    monkeypatch.setenv("CI", value)
    told: list[str] = []
    project = reopened(warm, root, told)
    entry = project.entry(shards(project)[0])
    flip(entry)
    believe(root / "digests" / "files.jsonl", entry)
    with project.use():
        project.artifact(shards(project)[0])
    assert len(told) == (value == "true")


def believe(memory: Path, entry: Path) -> None:
    """Remember an entry's weights as having the bytes that its seal says."""
    file = numbers(entry)
    stat = file.stat()
    state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
    digest = json.loads((entry / SEAL).read_text())["files"][file.relative_to(entry).as_posix()]
    memory.parent.mkdir(exist_ok=True)  # What was young when it was read is not remembered.
    memory.write_text(json.dumps([str(file), state, digest]))
