"""A family's shard that somebody else made: held to the family's own weights and reference."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mlprogram.blob import packed
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.weights import constants_of, find_weights
from pytest_ane.project.project import Project, read_project
from tests.plugin.projects import make_llama

pytestmark = pytest.mark.slow
MANIFEST = """\
[models.mini]
family = "llama"
source = { path = "tiny.gguf" }
shards = "L00"
max-tokens = 8

[models.mini.probes]
kinds = ["gaussian"]
count = 1
"""
BUILT = """
[models.mini.compression]
method = "palettize"
nbits = 6
group_size = 16
weight_threshold = 1000
"""
OWN = """
[models.mini.shard.L00]
artifact = "{package}"
reference = "float32"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family")
    make_llama(path / "tiny.gguf")
    built = project(path, BUILT)
    shutil.copytree(built.artifact(built.shards[0]).path, path / "own.mlpackage")
    return path


def project(folder: Path, more: str) -> Project:
    (folder / "shards.toml").write_text(MANIFEST + more)
    return read_project(folder / "shards.toml", folder / "cache")


def verdict(folder: Path, package: str, gate: str) -> Verdict:
    opened = project(folder, OWN.format(package=package))
    (shard,) = opened.shards
    measured = GATES[gate].measure(opened.open_shard(shard))
    return GATES[gate].judge(measured, getattr(shard.policy, gate), shard)


def edited(folder: Path, name: str, weight: str, scale: float, first: int = 0) -> str:
    """A copy in which the entries of a weight's tables are scaled, from one of them on."""
    package = folder / f"{name}.mlpackage"
    shutil.copytree(folder / "own.mlpackage", package)
    model = read_model(package)
    each = next(w for w in find_weights(model) if weight in w.weight.name)
    value = constants_of(each.operation, each.producers)["lut"]
    before = packed(model, value).tobytes()
    after = np.frombuffer(before, np.float16).copy()
    after[first:] *= np.float16(scale)
    file = package / "Data/com.apple.CoreML/weights/weight.bin"
    content = file.read_bytes()
    assert content.count(before) == 1
    file.write_bytes(content.replace(before, after.tobytes()))
    return package.name


def test_a_right_one(folder: Path) -> None:
    for gate in ("compression", "fidelity"):
        found = verdict(folder, "own.mlpackage", gate)
        assert found.status == "passed", [finding.reason for finding in found.reasons]
    assert found.values["program.max"] == 0


@pytest.mark.parametrize(("weight", "scale", "first"), [("gate", 0.0, 64), ("q_proj", 1.02, 0)])
def test_a_damaged_one(folder: Path, weight: str, scale: float, first: int) -> None:
    name = edited(folder, weight, weight, scale, first)
    assert verdict(folder, name, "compression").status == "failed"
