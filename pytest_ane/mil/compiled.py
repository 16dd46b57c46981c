"""Compiled models on disk: the program's text, its weights, and what the compiler says of it.

A `.mlmodelc` folder holds `model.mil` (the program), `weights/weight.bin` (as in a package) and
`metadata.json` (inputs, outputs, states). `coremldata.bin`, whose format is not published, is
neither read nor written. What is written here is not optimised, as Core ML's compiler would, and
only tools that read `model.mil` can use it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.blob import check_blobs
from pytest_ane.mil.checks import check_boundary
from pytest_ane.mil.features import checked, image_dtype
from pytest_ane.mil.files import read_file
from pytest_ane.mil.records import DType, Feature, MLModel, Program
from pytest_ane.mil.text.write import write

_PROGRAM = "model.mil"
_NETWORK = "model.espresso.net"
_KIND = "mlProgram"


def is_compiled(path: Path) -> bool:
    """Whether a folder is a compiled model, by its name or by what lies in it."""
    if path.suffix == ".mlmodelc":
        return True
    return not (path / "Manifest.json").exists() and any(
        (path / name).is_file() for name in (_PROGRAM, _NETWORK)
    )


def read_compiled(path: Path, *, weights: bool = True, function: str | None = None) -> MLModel:
    """Read an `.mlmodelc`.

    Args:
        path: the compiled model's folder.
        function: which function of several, read without the others; None for all of them, of
            which the default one runs.
        weights: check that every weight lies inside its file.

    Raises:
        ProgramError: missing, damaged, hostile, or not an ML Program; says which file and where.
    """
    if not path.is_dir():
        hint = "it is a file" if path.exists() else "no such folder"
        raise ProgramError(f"{path}: not an .mlmodelc ({hint}).")
    metadata = _metadata(path)
    program = _program(path / _PROGRAM)
    several = len(program.functions) > 1
    name = function or metadata.default or program.main.name
    if name not in program.functions:
        raise ProgramError(
            f"{path / _PROGRAM}: has no function {name!r}; it has {', '.join(program.functions)}."
        )
    if several and not metadata.describes(name):
        raise ProgramError(
            f"{metadata.file}: does not describe the function {name!r} of {_PROGRAM}; compile the "
            "package again."
        )
    model = MLModel(
        path=str(path),
        weights=str(path / "weights"),
        specification_version=metadata.specification_version,
        inputs=metadata.features(name, "inputSchema"),
        outputs=metadata.features(name, "outputSchema"),
        states=metadata.features(name, "stateSchema"),
        program=program.only(name) if function else program,
        metadata=metadata.user_defined,
        function=name if several else "",
    )
    check_boundary(model, metadata.file)
    if weights:
        check_blobs(model)
    return model


def compiled_functions(path: Path) -> tuple[str, ...]:
    """Names of the functions of an `.mlmodelc`, by the lines of its program that begin them.

    Raises:
        ProgramError: its program is missing or cannot be read.
    """
    try:
        text = read_file(path / _PROGRAM)
    except FileNotFoundError:
        raise ProgramError(
            f"{path / _PROGRAM}: missing; the compiled model is incomplete."
        ) from None
    return tuple(name.decode() for name in _FUNCTION.findall(text))


_FUNCTION = re.compile(rb"^ *func +([A-Za-z_]\w*) *<", re.MULTILINE)


def _metadata(path: Path) -> Metadata:
    file = path / "metadata.json"
    kind = "neuralNetwork" if (path / _NETWORK).exists() else _KIND
    try:
        metadata = Metadata(file)
        kind = metadata.kind or kind
    except FileNotFoundError:
        if kind == _KIND:
            raise ProgramError(f"{file}: missing; the compiled model is incomplete.") from None
    if kind != _KIND:
        raise ProgramError(
            f'{path}: is a {kind}, not an ML Program; convert it again with convert_to="mlprogram".'
        )
    return metadata


def _program(file: Path) -> Program:
    # The grammar is made when the first compiled model is read, and not before.
    from pytest_ane.mil.text.parse import parse

    try:
        data = read_file(file)
        return parse(data.decode(), file)
    except FileNotFoundError:
        raise ProgramError(f"{file}: missing; the compiled model is incomplete.") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProgramError(f"{file}:{line}: not UTF-8; the file is damaged.") from None


_MOST_BYTES = 1 << 26
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
    """`metadata.json`, read.

    Raises:
        ProgramError: damaged; or, from `features`, an element type that Core ML does not define.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            (self._content,) = json.loads(read_file(file, _MOST_BYTES))
            self.kind = str(self._content.get("modelType", {}).get("name", "")).rpartition("_")[2]
            self.specification_version = int(self._content.get("specificationVersion", 0))
            user = self._content.get("userDefinedMetadata", {})
            self.user_defined = {str(key): str(value) for key, value in user.items()}
            self.default = str(self._content.get("defaultFunctionName", ""))
            self._functions = {str(f["name"]): f for f in self._content.get("functions", ())}
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def describes(self, function: str) -> bool:
        """Whether it holds a function's features: in a table, or as the default function's."""
        return function in self._functions or function == (self.default or "main")

    def features(self, function: str, schema: str) -> tuple[Feature, ...]:
        """The features of `inputSchema`, `outputSchema` or `stateSchema` of a function.

        A model of several functions has a table for each of them; others have one for all.
        """
        try:
            entries = self._functions.get(function, self._content).get(schema, ())
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
        shape = _extents(_listed(entry.get("shape")))
        shapes = tuple(map(_extents, _listed(entry.get("enumeratedShapes"))))
        ranges = tuple(
            (int(low), int(high) if high >= 0 else None)
            for low, high in _listed(entry.get("shapeRange"))
        )
        return Feature(name, _ARRAYS[dtype], shape, ranges, shapes, kind, optional)

    def _damaged(self, error: Exception) -> ProgramError:
        return ProgramError(f"{self.file}: damaged ({error!r:.200}); compile the model again.")


def _listed(text: Any) -> Any:
    """A list: the compiler writes it as a text, such as `"[[1, 1], [1, 32000]]"`."""
    return json.loads(text) if isinstance(text, str) else text or ()


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in shape)


def write_compiled(model: MLModel, folder: Path, functions: Sequence[MLModel] = ()) -> Path:
    """Write `folder`, an `.mlmodelc` that `read_model` reads as the same model.

    Args:
        model: with all of its functions.
        folder: to be made.
        functions: of several, the same model read for each of them.

    Raises:
        ProgramError: the folder cannot be written.
    """
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
    """A link to a file where the disk allows it, else a copy."""
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
    return {
        "inputSchema": [_entry(f) for f in model.inputs],
        "outputSchema": [_entry(f) for f in model.outputs],
        "stateSchema": [_entry(f) for f in model.states],
    }


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
