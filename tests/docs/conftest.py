"""What the pages' commands run in: a user's project, made once, and processes that are forked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_ane.report.run import Row, Run
from tests.docs.pages import ROOT
from tests.docs.sessions import furnish
from tests.packages import save_conv, save_layers
from tests.plugin.projects import LLAMA, make_llama
from tests.records.runs import save_run


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages, a tiny Llama under the default model's name, and a test."""
    folder = tmp_path_factory.mktemp("packages")
    save_conv(folder / "some.mlpackage")
    save_layers(folder).rename(folder / "fp16.mlpackage")
    make_llama(folder / "mini.gguf")
    manifest = LLAMA.format(source="mini.gguf").replace("models.mini", "models.smollm2")
    (folder / "shards.toml").write_text(manifest)
    (folder / "test_own.py").write_text("def test_own():\n    assert True\n")
    # Manifests, and texts they name: a bare `pytest` runs the own test, not those of the examples.
    (folder / "examples").mkdir()
    for pattern in ("*.toml", "*.txt"):
        for file in (ROOT / "examples").glob(pattern):
            shutil.copy(file, folder / "examples")
    for weights in (ROOT / "examples").glob("*.gguf"):
        (folder / "examples" / weights.name).symlink_to(weights)
    shutil.copytree(ROOT / "examples" / "own_family", folder / "examples" / "own_family")
    furnish(folder)
    _record(folder)
    return folder


def _record(folder: Path) -> None:
    """A run and what `pytest-ane bound` printed, for reports."""
    row = Row("compression", "smollm2:L01", "passed", "3.65 MB")
    for name in ("run.jsonl", "last.jsonl"):
        save_run(folder / name, Run("ane: L01", (row,)))
    call = {"tokens": 1, "rate": 90.0, "kinds": [{"kind": "block", "seconds": 0.01}]}
    bound = {"command": "bound", "model": "smollm2", "name": "smollm2", "calls": [call]}
    (folder / "bound.json").write_text(json.dumps({**bound, "device": {"name": "M4 Max"}}))


@pytest.fixture
def project(packages: Path) -> Path:
    """The same folder in every test: shards are built once, by whatever page asks first."""
    return packages
