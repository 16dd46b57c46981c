"""Packages on disk: `Manifest.json`, the model file and the weights, each checked before use."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram._features import (
    no_program,
    no_such_part,
    optional_thresholds,
    part_names,
    read_features,
    read_suppression,
)
from pytest_ane.mlprogram.blob import check_blobs
from pytest_ane.mlprogram.checks import check_boundary, check_pipeline, read_file, stays_inside
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.proto import definitions, read_program
from pytest_ane.mlprogram.records import MLModel, Part, Pipeline


def read_package(
    path: Path, *, weights: bool = True, function: str | None = None
) -> MLModel | Pipeline:
    """Read an `.mlpackage` of one ML Program, or of a pipeline, as `model.read_any` does."""
    file = _model_file(path)
    data = read_file(file)
    read = _read if len(data) <= _MOST_KEPT else _read.__wrapped__
    model = read(data, path, file, function)
    if weights:
        for part in model.parts if isinstance(model, Pipeline) else (model,):
            if isinstance(part, MLModel):
                check_blobs(part)
    return model


_MOST_KEPT = 1 << 20
"""Bytes of a model file whose records are kept: as Python has them, they take ten times as much."""


# Gates ask for a package again and again. Equal bytes are the same model, whatever wrote them.
@lru_cache(maxsize=8)
def _read(data: bytes, path: Path, file: Path, function: str | None) -> MLModel | Pipeline:
    message = _parse(data, file)
    body = pipeline_of(message)
    if body is None:
        return _model(message, str(path), file, function=function)
    description = message.description
    parts = tuple(_part(part, path, file, i) for i, part in enumerate(body.models, 1))
    inputs = optional_thresholds(read_features(description.input, file), parts)
    outputs, names = read_features(description.output, file), part_names(len(parts), body.names)
    version = message.specificationVersion
    pipeline = Pipeline(str(path), version, inputs, outputs, parts, names)
    check_pipeline(pipeline, file)
    if function is not None and function not in pipeline.programs:
        raise no_such_part(file, function, pipeline.programs)
    return pipeline if function is None else pipeline.programs[function]


def _part(message: Any, path: Path, file: Path, number: int) -> Part:
    name = f"{path}, part {number}"
    if message.WhichOneof("Type") == "nonMaximumSuppression":
        return read_suppression(message, name, file)
    model = _model(message, name, file, part=f"part {number} of the pipeline ")
    return replace(model, part=f"model{number - 1}")


def parse_package(path: Path) -> tuple[Path, Any]:
    """The model file of an `.mlpackage`, and its message `Model` as it stands, unchecked."""
    file = _model_file(path)
    return file, _parse(read_file(file), file)


def pipeline_of(message: Any) -> Any:
    """The message of a pipeline, whatever its result is called; None where there is one model."""
    kind = message.WhichOneof("Type") or ""
    body = getattr(message, kind) if kind.startswith("pipeline") else None
    return getattr(body, "pipeline", body)


def _model(
    message: Any, path: str, file: Path, *, function: str | None = None, part: str = ""
) -> MLModel:
    kind = message.WhichOneof("Type")
    if kind != "mlProgram":
        raise no_program(f"{file}: {part}", kind or "model of no kind")
    declared = _declared(message.description, function, file)
    name = getattr(declared, "name", "")
    program = read_program(message.mlProgram, file)
    features = (declared.input, declared.output, declared.state)
    inputs, outputs, states = (read_features(each, file) for each in features)
    model = MLModel(
        path, str(file.parent / "weights"), message.specificationVersion, inputs, outputs, states,
        program=program.only(name) if function and name else program,
        metadata=dict(message.description.metadata.userDefined), function=name,
    )  # fmt: skip
    check_boundary(model, file)
    return model


def _declared(description: Any, function: str | None, file: Path) -> Any:
    """The description of a function, or the model's own where there is only one."""
    several = {f.name: f for f in description.functions}
    if not several:
        if function not in (None, "main"):
            raise ProgramError(f"{file}: has no function {function!r}; it has main.")
        return description
    name = function or description.defaultFunctionName
    if name not in several:
        raise ProgramError(f"{file}: has no function {name!r}; it has {', '.join(several)}.")
    return several[name]


def package_functions(path: Path) -> tuple[str, ...]:
    """Names of the functions that an `.mlpackage` declares; of a pipeline, of its ML Programs."""
    _, message = parse_package(path)
    if (body := pipeline_of(message)) is not None:
        named = zip(part_names(len(body.models), body.names), body.models, strict=True)
        return tuple(name for name, part in named if part.WhichOneof("Type") == "mlProgram")
    return tuple(function.name for function in message.description.functions)


_MOST_MANIFEST = 1 << 26


def _model_file(path: Path) -> Path:
    if path.suffix == ".mlmodel" and path.is_file():
        says = "is one file, not an .mlpackage of an ML Program"
        raise ProgramError(f'{path}: {says}; convert it again with convert_to="mlprogram".')
    if not path.is_dir():
        hint = "it is a file" if path.exists() else "no such folder"
        raise ProgramError(f"{path}: not an .mlpackage ({hint}).")
    manifest = path / "Manifest.json"
    try:
        entries = json.loads(read_file(manifest, _MOST_MANIFEST))
        root = entries["itemInfoEntries"][entries["rootModelIdentifier"]]["path"]
        if not isinstance(root, str) or "\0" in root:
            raise ValueError(f"{root!r} is no path")
        file = path / "Data" / root
    except FileNotFoundError:
        raise ProgramError(f"{manifest}: missing; the package is incomplete.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        says = f"damaged ({error!r:.200}); save the package again"
        raise ProgramError(f"{manifest}: {says}.") from None
    if not stays_inside(root):
        raise ProgramError(f"{manifest}: names a model outside the package: {root!r}.")
    try:
        found = file.is_file()
    except OSError as error:
        raise ProgramError(f"{file}: cannot be read ({error.strerror}).") from None
    if not found:
        raise ProgramError(f"{file}: missing, though {manifest.name} names it.")
    return file


def _parse(data: bytes, file: Path) -> Any:
    model = definitions().Model
    # protobuf's own DecodeError is not part of its typed interface, and depth raises another.
    try:
        return model.FromString(data)
    except Exception as error:
        raise ProgramError(f"{file}: cannot be parsed; it is cut short or damaged.") from error
