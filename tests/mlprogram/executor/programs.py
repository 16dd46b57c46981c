"""Programs written as text, or with coremltools' builder: real models for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.parse import parse
from pytest_ane.mlprogram.records import StateType, TensorType


def build(
    path: Path, inputs: Sequence[Any], body: Callable[..., Any], target: str = "iOS18"
) -> Path:
    """Convert a function of `mb` and values, without passes that change what it says."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    with converter_notes():
        opset = getattr(ct.target, target)
        program = mb.program(input_specs=list(inputs), opset_version=opset)(body)
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=opset,
            compute_precision=ct.precision.FLOAT32,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        ).save(str(path))
    return path


def session(path: Path, **options: Any) -> Session:
    """A session of a package."""
    return Session(read_model(path), **options)


WORDS = {"fp16": "Float16", "fp32": "Float32", "int32": "Int32"}


def save_text(
    folder: Path, body: str, outputs: str = "y", inputs: str = "tensor<fp32, [3]> x"
) -> Path:
    """Write `folder`, a compiled model whose operations are given as text."""
    text = f"program(1.3) {{\n func main<ios18>({inputs}) {{\n{body}\n}} -> ({outputs});\n}}\n"
    (folder / "weights").mkdir(parents=True)
    (folder / "model.mil").write_text(text)
    schemas: dict[str, list[Any]] = {"inputSchema": [], "stateSchema": []}
    for named in parse(text).main.inputs:
        state = isinstance(named.type, StateType)
        kind = named.type.wrapped if isinstance(named.type, StateType) else named.type
        assert isinstance(kind, TensorType)
        ends = [[1, 10**6] if d is None else [d, d] for d in kind.shape]
        schemas["stateSchema" if state else "inputSchema"].append(
            {"name": named.name, "type": "State" if state else "MultiArray",
             "dataType": WORDS[kind.dtype.value], "shape": [low for low, _ in ends],
             "shapeRange": ends if None in kind.shape else []}
        )  # fmt: skip
    described = {"modelType": {"name": "MLModelType_mlProgram"}, "specificationVersion": 9}
    (folder / "metadata.json").write_text(json.dumps([described | schemas]))
    return folder


def written(
    folder: Path, body: str, outputs: str = "y", inputs: str = "tensor<fp32, [3]> x", **options: Any
) -> Session:
    """A session of what `save_text` writes."""
    return session(save_text(folder, body, outputs, inputs), **options)
