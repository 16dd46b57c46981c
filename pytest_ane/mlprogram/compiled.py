"""Compiled models on disk: the program's text, its weights, and what the compiler says of it.

A `.mlmodelc` folder holds `model.mil` (the program), `weights/weight.bin` (as in a package) and
`metadata.json` (inputs, outputs, states), or only `coremldata.bin` for these. That of a pipeline
holds such a folder for each part, `model0`, `model1` and so on. What is written here is not
optimised, as Core ML's compiler would, and only tools that read `model.mil` can use it.

The format of `coremldata.bin` is not published. All that is read is what every file at hand has:
the number of the model's type in Model.proto, and its `ModelDescription` as a protobuf message.
After the type come 24 bytes, a text with its length before it, 32 bytes that begin with the
specification's version, and the message with its length before it; lengths are 8 bytes, the lowest
first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram._features import (
    checked,
    image_dtype,
    no_program,
    no_such_part,
    part_names,
    read_features,
)
from pytest_ane.mlprogram.blob import check_blobs
from pytest_ane.mlprogram.checks import check_boundary, check_pipeline, read_file
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Pipeline, Program

_DATA = "coremldata.bin"
_MOST_BYTES = 1 << 26
_TEXT = 28
"""Bytes before the text's length."""
_VERSION = 32
_SCHEMAS = {"inputSchema": "input", "outputSchema": "output", "stateSchema": "state"}


class ModelData:
    """`coremldata.bin`, read; it answers as `Metadata` does.

    `FileNotFoundError` where there is none, `ProgramError` of another form or an impossible
    feature.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        data = read_file(file, _MOST_BYTES)
        try:
            (number,) = struct.unpack_from("<I", data)
            self.kind = definitions().Model.DESCRIPTOR.fields_by_number[number].name
            after = _TEXT + 8 + _length(data, _TEXT)
            (version,) = struct.unpack_from("<Q", data, after)
            start = after + _VERSION + 8
            message = data[start : start + _length(data, after + _VERSION)]
            self._description = definitions().ModelDescription.FromString(message)
        # protobuf's own DecodeError is not part of its typed interface.
        except Exception as error:
            raise ProgramError(
                f"{file}: has a form that is not known, and there is no metadata.json; compile the "
                "model with `xcrun coremlcompiler`, or name its package."
            ) from error
        self.specification_version = int(version)
        self.user_defined = dict(self._description.metadata.userDefined)
        self.default = self._description.defaultFunctionName
        self.functions = {each.name: each for each in self._description.functions}

    def features(self, function: str, schema: str) -> tuple[Feature, ...]:
        """The features of `inputSchema`, `outputSchema` or `stateSchema` of a function."""
        described = self.functions.get(function, self._description)
        return read_features(getattr(described, _SCHEMAS[schema]), self.file)


def read_names(file: Path) -> tuple[str, ...]:
    """The names of a pipeline's parts, `modelNames/coremldata.bin`; none where it names none."""
    try:
        data = read_file(file, _MOST_BYTES)
        count, at, names = _length(data, 0), 8, []
        for _ in range(count):
            end = at + 8 + _length(data, at)
            names.append(data[at + 8 : end].decode())
            at = end
    except FileNotFoundError:
        return ()
    except (struct.error, ValueError) as error:
        raise ProgramError(f"{file}: damaged ({error}); compile the pipeline again.") from None
    return tuple(names)


def _length(data: bytes, at: int) -> int:
    (length,) = struct.unpack_from("<Q", data, at)
    if length > len(data) - at - 8:
        raise ValueError(f"{length} bytes at {at} of {len(data)}")
    return int(length)


_PROGRAM = "model.mil"
_NETWORK = "model.espresso.net"
_KIND = "mlProgram"
_PART = "model"


def is_compiled(path: Path) -> bool:
    """Whether a folder is a compiled model, by its name or by what lies in it."""
    if path.suffix == ".mlmodelc":
        return True
    return not (path / "Manifest.json").exists() and any(
        (path / name).is_file() for name in (_PROGRAM, _NETWORK, f"{_PART}0/{_PROGRAM}")
    )


def read_compiled(path: Path, *, weights: bool, function: str | None) -> MLModel | Pipeline:
    """Read an `.mlmodelc`, as `model.read_any` does."""
    if not path.is_dir():
        hint = "it is a file" if path.exists() else "no such folder"
        raise ProgramError(f"{path}: not an .mlmodelc ({hint}).")
    if part_folders(path):
        return _pipeline(path, weights, function)
    return _model(path, weights, function)


def part_folders(path: Path) -> list[Path]:
    """The parts of an `.mlmodelc` that holds a pipeline; none of any other."""
    if (path / _PROGRAM).exists() or (path / _NETWORK).exists():
        return []
    folders = (path / f"{_PART}{i}" for i in count())
    return list(takewhile(Path.is_dir, folders))


def _named(path: Path) -> tuple[list[Path], tuple[str, ...], tuple[str, ...]]:
    """The folders of a pipeline's parts, their names, and the names of those that are programs."""
    folders = part_folders(path)
    names = part_names(len(folders), read_names(path / "modelNames" / _DATA))
    named = zip(names, folders, strict=True)
    return folders, names, tuple(name for name, f in named if (f / _PROGRAM).exists())


def _pipeline(path: Path, weights: bool, part: str | None) -> MLModel | Pipeline:
    """A pipeline, or one of its programs, whatever the other parts are."""
    folders, names, programs = _named(path)

    def read(folder: Path) -> MLModel:
        return replace(_model(folder, weights, None), part=folder.name)

    if part is not None:
        if part not in programs:
            raise no_such_part(path, part, programs)
        return read(folders[names.index(part)])
    for i, folder in enumerate(folders, 1):
        if not (folder / _PROGRAM).exists():
            raise _refused(path, i, folder)
    metadata = _described_in(path)
    inputs, outputs = (metadata.features("", schema) for schema in ("inputSchema", "outputSchema"))
    version, parts = metadata.specification_version, tuple(map(read, folders))
    pipeline = Pipeline(str(path), version, inputs, outputs, parts, names)
    check_pipeline(pipeline, metadata.file)
    return pipeline


def _missing(file: Path) -> ProgramError:
    return ProgramError(f"{file}: missing; the compiled model is incomplete.")


def _refused(path: Path, number: int, folder: Path) -> ProgramError:
    """Why a part cannot be read, and what to do."""
    kind = "neuralNetwork" if (folder / _NETWORK).exists() else ""
    with suppress(FileNotFoundError, ProgramError):
        kind = kind or ModelData(folder / _DATA).kind
    if kind in ("", _KIND):
        return _missing(folder / _PROGRAM)
    part = f"{path}: part {number} of the pipeline "
    if kind != "nonMaximumSuppression":
        return no_program(part, kind)
    kept = "whose thresholds a compiled model keeps in a form that is not published"
    fix = "name the .mlpackage that it was compiled from"
    return ProgramError(f"{part}is a {kind}, {kept}; {fix}.")


def _model(path: Path, weights: bool, function: str | None) -> MLModel:
    metadata = _metadata(path)
    program = _program(path / _PROGRAM)
    several = len(program.functions) > 1
    name = function or metadata.default or program.main.name
    if name not in program.functions:
        known = ", ".join(program.functions)
        raise ProgramError(f"{path / _PROGRAM}: has no function {name!r}; it has {known}.")
    # Features lie in a table of the function's own, or are the default function's.
    if several and name not in metadata.functions and name != (metadata.default or "main"):
        says = f"does not describe the function {name!r} of {_PROGRAM}; compile the package again"
        raise ProgramError(f"{metadata.file}: {says}.")
    inputs, outputs, states = (metadata.features(name, schema) for schema in _SCHEMAS)
    model = MLModel(
        str(path), str(path / "weights"), metadata.specification_version, inputs, outputs, states,
        program=program.only(name) if function else program,
        metadata=metadata.user_defined, function=name if several else "",
    )  # fmt: skip
    check_boundary(model, metadata.file)
    if weights:
        check_blobs(model)
    return model


def compiled_functions(path: Path) -> tuple[str, ...]:
    """Names of the functions of an `.mlmodelc`; of a pipeline, of its ML Programs."""
    if part_folders(path):
        return _named(path)[2]
    try:
        text = read_file(path / _PROGRAM)
    except FileNotFoundError:
        raise _missing(path / _PROGRAM) from None
    return tuple(name.decode() for name in _FUNCTION.findall(text))


_FUNCTION = re.compile(rb"^ *func +([A-Za-z_]\w*) *<", re.MULTILINE)


def _described_in(path: Path) -> Metadata | ModelData:
    """What a compiled model declares: `metadata.json`, which some compilers leave out, or else."""
    file = path / "metadata.json"
    with suppress(FileNotFoundError):
        return Metadata(file)
    try:
        return ModelData(path / _DATA)
    except FileNotFoundError:
        raise _missing(file) from None


def _metadata(path: Path) -> Metadata | ModelData:
    kind = "neuralNetwork"
    if (path / "metadata.json").exists() or not (path / _NETWORK).exists():
        metadata = _described_in(path)
        kind = metadata.kind or ("neuralNetwork" if (path / _NETWORK).exists() else _KIND)
    if kind != _KIND:
        raise no_program(f"{path}: ", kind)
    return metadata


def _program(file: Path) -> Program:
    # The grammar is made when the first compiled model is read, and not before.
    from pytest_ane.mlprogram.parse import parse

    try:
        data = read_file(file)
        return parse(data.decode(), file)
    except FileNotFoundError:
        raise _missing(file) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProgramError(f"{file}:{line}: not UTF-8; the file is damaged.") from None


_ARRAYS = {"Float16": DType.FP16, "Float32": DType.FP32, "Float64": DType.FP64,
           "Double": DType.FP64, "Int32": DType.INT32, "Int8": DType.INT8}  # fmt: skip
# Types that are no arrays, by the compiler's name: the name in the protobuf, and what it holds.
_SCALARS = {"Int64": ("int64Type", DType.INT64), "Double": ("doubleType", DType.FP64),
            "String": ("stringType", DType.STRING),
            "Dictionary": ("dictionaryType", DType.STRING)}  # fmt: skip
_ARRAY_NAMES = {dtype: name for name, dtype in _ARRAYS.items()}
_SCALAR_NAMES = {kind: name for name, (kind, _) in _SCALARS.items()}
_DAMAGED = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError,
            ValueError)  # fmt: skip


class Metadata:
    """`metadata.json`, read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            (self._content,) = json.loads(read_file(file, _MOST_BYTES))
            self.kind = str(self._content.get("modelType", {}).get("name", "")).rpartition("_")[2]
            self.specification_version = int(self._content.get("specificationVersion", 0))
            user = self._content.get("userDefinedMetadata", {})
            self.user_defined = {str(key): str(value) for key, value in user.items()}
            self.default = str(self._content.get("defaultFunctionName", ""))
            self.functions = {str(f["name"]): f for f in self._content.get("functions", ())}
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def features(self, function: str, schema: str) -> tuple[Feature, ...]:
        """The features of `inputSchema`, `outputSchema` or `stateSchema` of a function.

        A model of several functions has a table for each of them; others have one for all.
        """
        try:
            entries = self.functions.get(function, self._content).get(schema, ())
            return tuple(checked(self._feature(entry), self.file) for entry in entries)
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def _feature(self, entry: Mapping[str, Any]) -> Feature:
        name, kind = str(entry["name"]), str(entry["type"])
        optional = str(entry.get("isOptional", "0")) == "1"
        if kind in ("MultiArray", "State"):
            return self._array(name, "state" if kind == "State" else "tensor", optional, entry)
        if kind == "Image":
            size = (int(entry["height"]), int(entry["width"]))
            color = str(entry.get("colorspace", "")).upper()
            dtype = image_dtype(color)
            return Feature(name, dtype, size, kind="image", optional=optional, color=color)
        kind, dtype = _SCALARS.get(kind, (kind, DType.STRING))
        return Feature(name, dtype, (), kind=kind, optional=optional)

    def _array(self, name: str, kind: str, optional: bool, entry: Mapping[str, Any]) -> Feature:
        if (dtype := str(entry["dataType"])) not in _ARRAYS:
            raise ProgramError(f"{self.file}: feature {name!r} has the unknown type {dtype}.")
        shape = tuple(map(int, _listed(entry.get("shape"))))
        shapes = tuple(tuple(map(int, s)) for s in _listed(entry.get("enumeratedShapes")))
        ends = _listed(entry.get("shapeRange"))
        ranges = tuple((int(low), int(high) if high >= 0 else None) for low, high in ends)
        return Feature(name, _ARRAYS[dtype], shape, ranges, shapes, kind, optional)

    def _damaged(self, error: Exception) -> ProgramError:
        return ProgramError(f"{self.file}: damaged ({error!r:.200}); compile the model again.")


def _listed(text: Any) -> Any:
    """A list: the compiler writes it as a text, such as `"[[1, 1], [1, 32000]]"`."""
    return json.loads(text) if isinstance(text, str) else text or ()


def write_compiled(model: MLModel, folder: Path, functions: Sequence[MLModel] = ()) -> Path:
    """Write `folder`, an `.mlmodelc` that `read_model` reads as the same model.

    `functions` are, of several, the same model read for each of them.
    """
    from pytest_ane.mlprogram.parse import write

    try:
        (folder / "weights").mkdir(parents=True)
        (folder / "model.mil").write_text(write(model.program), encoding="utf-8")
        (folder / "metadata.json").write_text(json.dumps([_described(model, functions)], indent=2))
        weights = Path(model.weights)
        for file in weights.iterdir() if weights.is_dir() else ():
            _place(file, folder / "weights" / file.name)
    except OSError as error:
        raise ProgramError(f"{folder}: cannot be written ({error.strerror or error}).") from None
    return folder


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _described(model: MLModel, functions: Sequence[MLModel]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "metadataOutputVersion": "3.0",
        "specificationVersion": model.specification_version,
        "modelType": {"name": "MLModelType_mlProgram"},
        "userDefinedMetadata": dict(model.metadata),
        **_schemas(model),
    }
    if model.function:
        described["defaultFunctionName"] = model.function
        described["functions"] = [{"name": each.function, **_schemas(each)} for each in functions]
    return described


def _schemas(model: MLModel) -> dict[str, Any]:
    return {schema: [*map(_entry, getattr(model, f"{kind}s"))] for schema, kind in _SCHEMAS.items()}


def _entry(feature: Feature) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": feature.name, "isOptional": str(int(feature.optional))}
    if feature.kind == "image":
        height, width = feature.shape
        return {**entry, "type": "Image", "height": str(height), "width": str(width),
                "colorspace": feature.color}  # fmt: skip
    if feature.kind not in ("tensor", "state"):
        return {**entry, "type": _SCALAR_NAMES.get(feature.kind, feature.kind)}
    entry |= {
        "type": "State" if feature.kind == "state" else "MultiArray",
        "dataType": _ARRAY_NAMES[feature.dtype],
        "shape": json.dumps(list(feature.shape)),
        "hasShapeFlexibility": str(int(bool(feature.ranges or feature.enumerated))),
    }
    if feature.ranges:
        ends = [[low, -1 if high is None else high] for low, high in feature.ranges]
        entry["shapeRange"] = json.dumps(ends)
    if feature.enumerated:
        entry["enumeratedShapes"] = json.dumps([list(shape) for shape in feature.enumerated])
    return entry
