"""Compiled models, written: a package's program as text, beside its weights and its description.

Not Core ML's compiler: nothing is optimised, and only tools that read `model.mil`, such as our own
reader, can use the result.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import DType, Feature, Model
from pytest_ane.mil.text.write import write

_ARRAYS = {DType.FP16: "Float16", DType.FP32: "Float32", DType.FP64: "Double",
           DType.INT32: "Int32", DType.INT8: "Int8"}  # fmt: skip
_SCALARS = {"int64Type": "Int64", "doubleType": "Double", "stringType": "String",
            "dictionaryType": "Dictionary"}  # fmt: skip


def write_compiled(model: Model, folder: Path) -> Path:
    """Write `folder`, an `.mlmodelc` that `read_model` reads as the same model.

    Raises:
        ProgramError: the folder cannot be written.
    """
    try:
        (folder / "weights").mkdir(parents=True)
        (folder / "model.mil").write_text(write(model.program), encoding="utf-8")
        (folder / "metadata.json").write_text(json.dumps([_metadata(model)], indent=2))
        weights = Path(model.weights)
        for file in weights.iterdir() if weights.is_dir() else ():
            _place(file, folder / "weights" / file.name)
    except OSError as error:
        raise ProgramError(f"{folder}: cannot be written ({error.strerror or error}).") from None
    return folder


def _place(source: Path, target: Path) -> None:
    """A link to a file where the disk allows it, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _metadata(model: Model) -> dict[str, Any]:
    schemas = {
        "inputSchema": _schema(model.inputs),
        "outputSchema": _schema(model.outputs),
        "stateSchema": _schema(model.states),
    }
    described: dict[str, Any] = {
        "metadataOutputVersion": "3.0",
        "specificationVersion": model.specification_version,
        "modelType": {"name": "MLModelType_mlProgram"},
        "userDefinedMetadata": dict(model.metadata),
        **schemas,
    }
    if model.function:
        described["functions"] = [{"name": model.function, **schemas}]
    return described


def _schema(features: Iterable[Feature]) -> list[dict[str, Any]]:
    return [_entry(f) for f in features]


def _entry(feature: Feature) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": feature.name, "isOptional": str(int(feature.optional))}
    if feature.kind == "image":
        height, width = feature.shape
        return {**entry, "type": "Image", "height": str(height), "width": str(width),
                "colorspace": feature.color}  # fmt: skip
    if feature.kind not in ("tensor", "state"):
        return {**entry, "type": _SCALARS.get(feature.kind, feature.kind)}
    entry |= {
        "type": "State" if feature.kind == "state" else "MultiArray",
        "dataType": _ARRAYS[feature.dtype],
        "shape": json.dumps(list(feature.shape)),
        "hasShapeFlexibility": str(int(bool(feature.ranges or feature.enumerated))),
    }
    if feature.ranges:
        ends = [[low, -1 if high is None else high] for low, high in feature.ranges]
        entry["shapeRange"] = json.dumps(ends)
    if feature.enumerated:
        entry["enumeratedShapes"] = json.dumps([list(shape) for shape in feature.enumerated])
    return entry
