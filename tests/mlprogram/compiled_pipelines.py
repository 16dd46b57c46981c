"""Compiled models as Core ML writes them without `metadata.json`, pipelines among them, by hand."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.mlprogram.parse import write
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import MLModel, Pipeline


def coremldata(message: Any, *, text: bytes = b"generic") -> bytes:
    """`coremldata.bin` of a message `Model`, with what precedes and follows the description."""
    number = definitions().Model.DESCRIPTOR.fields_by_name[message.WhichOneof("Type")].number
    description = message.description.SerializeToString()
    return b"".join(
        (
            struct.pack("<II20x", number, 5),
            struct.pack("<Q", len(text)) + text,
            struct.pack("<Q24x", message.specificationVersion),
            struct.pack("<Q", len(description)) + description,
            struct.pack("<Q8x", number),
        )
    )


def save_compiled(package: Path, folder: Path) -> Path:
    """Write `folder`, the compiled twin of a package of a program or of a pipeline."""
    model, (_, message) = read_any(package, weights=False), parse_package(package)
    folder.mkdir(parents=True)
    (folder / "coremldata.bin").write_bytes(coremldata(message))
    if isinstance(model, MLModel):
        _save_program(model, folder)
        return folder
    assert isinstance(model, Pipeline)
    for i, (part, each) in enumerate(zip(model.parts, message.pipeline.models, strict=True)):
        inner = folder / f"model{i}"
        inner.mkdir()
        (inner / "coremldata.bin").write_bytes(coremldata(each))
        if isinstance(part, MLModel):
            _save_program(part, inner)
    if names := message.pipeline.names:
        packed = b"".join(struct.pack("<Q", len(name)) + name.encode() for name in names)
        (folder / "modelNames").mkdir()
        (folder / "modelNames" / "coremldata.bin").write_bytes(
            struct.pack("<Q", len(names)) + packed
        )
    return folder


def _save_program(model: MLModel, folder: Path) -> None:
    (folder / "model.mil").write_text(write(model.program), "utf-8")
    shutil.copytree(model.weights, folder / "weights")
