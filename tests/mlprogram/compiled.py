"""Compiled models of programs written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.packages import Program


def save(program: Program, folder: Path) -> Path:
    """Writes `<folder>/model.mlmodelc`, the twin of `<folder>/model.mlpackage`."""
    return write_compiled(read_model(program.save(folder)), folder / "model.mlmodelc")


def changed(compiled: Path, **entries: Any) -> Path:
    """With other entries in its `metadata.json`."""
    (metadata,) = json.loads((compiled / "metadata.json").read_text("utf-8"))
    (compiled / "metadata.json").write_text(json.dumps([metadata | entries]), "utf-8")
    return compiled
