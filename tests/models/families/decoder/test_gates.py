"""Checkpoints that transformers saves, as a new user brings them: `init --from`, then the gates."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.manifest import load
from pytest_ane.mlprogram.blob import packed
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.weights import ProgramWeight, find_weights
from pytest_ane.project.project import read_project
from tests.forked import Forge
from tests.models.families.bert import oracle as bert
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.gguf_files import write_gguf_of
from tests.models.families.decoder.oracle import Case
from tests.models.sources.checkpoints import write_tokenizer
from tests.tools.test_init_from import WORDS

WIDER = {
    "hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1, "vocab_size": 200,
    "pad_token_id": 199,
}  # fmt: skip
"""Wide enough that most of a block's weights are compressed; no text has the padding's zeros."""
OF_EACH_FAMILY = (*{case.family: case for case in reversed(CASES)}.values(), bert.CASES[0])
EVERY_TIME = ("llama", "bert")
"""A change tries these, which share least of their code, and a quarter of the others."""


def family_of(case: Case | bert.Case) -> str:
    return getattr(case, "family", "bert")


def gates(forge: Forge, folder: Path, shards: str) -> subprocess.CompletedProcess[str]:
    command = ["pytest", f"--ane-shards={shards}", "-m", "gate", "--ane-cache=cache"]
    return forge.run(command, folder)


def palettized(package: Path) -> list[ProgramWeight]:
    """A package's weights with tables."""
    return [w for w in find_weights(read_model(package)) if "lut" in w.operation.inputs]


def spoil(package: Path) -> None:
    """Turn one of the tables of a block's widest palettized weight around."""
    read = read_model(package)
    weight = max(palettized(package), key=lambda w: w.weight.elements)
    (table,) = weight.operation.inputs["lut"]
    before = packed(read, table).tobytes()  # type: ignore[arg-type]
    file = package / "Data/com.apple.CoreML/weights/weight.bin"
    content = file.read_bytes()
    assert content.count(before) == 1
    after = np.frombuffer(before, np.float16).reshape(-1, 256).copy()
    after[0] = after[0, ::-1]
    file.write_bytes(content.replace(before, after.tobytes()))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[] if name in EVERY_TIME else pytest.mark.drawn)
        for case in OF_EACH_FAMILY
        if (name := family_of(case))
    ],
)
def test_the_first_manifest_is_green_and_a_spoilt_weight_red(
    case: Case | bert.Case, tmp_path: Path, forge: Forge
) -> None:
    replace(case, changes={**case.changes, **WIDER}).save(tmp_path / "model")
    write_tokenizer(tmp_path / "model", WORDS)
    green_then_red(forge, tmp_path, "model")


@pytest.mark.drawn
@pytest.mark.heavy
@pytest.mark.parametrize("family", ["gemma3", "qwen3"])
def test_a_gguf_file_likewise(family: str, tmp_path: Path, forge: Forge) -> None:
    (case, *_) = (case for case in CASES if case.family == family)
    replace(case, changes={**case.changes, **WIDER}).save(tmp_path / "model")
    write_gguf_of(tmp_path / "model", tmp_path / "model.gguf")
    green_then_red(forge, tmp_path, "model.gguf")


def green_then_red(forge: Forge, tmp_path: Path, source: str) -> None:
    """A source's first manifest passes all gates; with one spoilt palette fidelity fails."""
    done = forge.run(["pytest_ane.cli", "init", "--from", source, "--no-gates"], tmp_path)
    assert done.returncode == 0, done.stdout
    manifest = tmp_path / "shards.toml"
    text, limit = manifest.read_text(), "max-reference-perplexity = 1e300"
    if limit not in text:  # No text is likely to random weights, whatever the prompts.
        manifest.write_text(text.replace("min-greedy = 10", f"min-greedy = 10\n{limit}"))
    (model,) = load(manifest).models
    green = gates(forge, tmp_path, "all")
    assert green.returncode == 0, green.stdout
    count = len(model.shards)
    assert f"{1 + 3 * count} gates: " in green.stdout
    spoilt = tmp_path / "spoilt.mlpackage"
    shard = next(s for s in model.ids if palettized(package_of(tmp_path, s)))
    package_of(tmp_path, shard).rename(spoilt)
    spoil(spoilt)
    with manifest.open("a") as more:
        more.write(f'\n[models.{model.name}.shard."{shard}"]\n')
        more.write('artifact = "spoilt.mlpackage"\nreference = "float32"\n')
    red = gates(forge, tmp_path, shard)
    assert red.returncode == 1, red.stdout
    assert f"FAILED   {model.name}:{shard}" in red.stdout
    assert "fidelity" in red.stdout


def package_of(folder: Path, shard: str) -> Path:
    """A shard's package in the cache."""
    project = read_project(folder / "shards.toml", folder / "cache")
    (found,) = (each for each in project.shards if each.id == shard)
    package = project.package(found)
    assert package is not None
    return package
