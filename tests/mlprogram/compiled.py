"""Compiled models written by hand: the text by our writer, the rest by the test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram._write import write
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import DType, Feature
from tests.mlprogram.packages import Program, weight_file

DTYPES = {DType.FP16: "Float16", DType.FP32: "Float32", DType.INT32: "Int32"}


def schema(feature: Feature) -> dict[str, Any]:
    """A feature in the compiler's words."""
    flexible = {"shapeRange": str([list(r) for r in feature.ranges])} if feature.ranges else {}
    return {
        "name": feature.name,
        "type": "State" if feature.kind == "state" else "MultiArray",
        "dataType": DTYPES[feature.dtype],
        "shape": str(list(feature.shape)),
        "isOptional": "0",
        "hasShapeFlexibility": "1" if flexible else "0",
        **flexible,
    }


def save(program: Program, folder: Path) -> Path:
    """Writes `<folder>/model.mlmodelc`, the twin of `<folder>/model.mlpackage`."""
    model = read_model(program.save(folder))
    compiled = folder / "model.mlmodelc"
    (compiled / "weights").mkdir(parents=True)
    shutil.copy(weight_file(Path(model.path)), compiled / "weights")
    (compiled / "model.mil").write_text(write(model.program), "utf-8")
    metadata = {
        "metadataOutputVersion": "3.0",
        "modelType": {"name": "MLModelType_mlProgram"},
        "specificationVersion": model.specification_version,
        "inputSchema": [schema(f) for f in model.inputs],
        "outputSchema": [schema(f) for f in model.outputs],
        "stateSchema": [schema(f) for f in model.states],
        "userDefinedMetadata": dict(model.metadata),
    }
    rewrite(compiled, metadata)
    return compiled


def rewrite(compiled: Path, metadata: dict[str, Any]) -> None:
    (compiled / "metadata.json").write_text(json.dumps([metadata]), "utf-8")


def changed(compiled: Path, **entries: Any) -> Path:
    """With other entries in its `metadata.json`."""
    (metadata,) = json.loads((compiled / "metadata.json").read_text("utf-8"))
    rewrite(compiled, metadata | entries)
    return compiled
