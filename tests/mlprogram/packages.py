"""Packages written by hand: protobuf and weights built byte by byte, without a converter."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.mlprogram.proto import definitions, mil

SENTINEL = 0xDEADBEEF
CODES = {"FLOAT16": 1, "FLOAT32": 2, "UINT8": 3, "INT8": 4, "INT16": 6, "UINT16": 7, "INT4": 8,
         "UINT1": 9, "UINT2": 10, "UINT4": 11, "UINT3": 12, "UINT6": 13, "INT32": 14,
         "UINT32": 15}  # fmt: skip


class Weights:
    """A `weight.bin` as it grows; offsets are multiples of 64."""

    def __init__(self, version: int = 2) -> None:
        self.version, self.count, self.body = version, 0, b""

    def add(self, data: bytes, code: int, *, sentinel: int = SENTINEL, size: int | None = None,
            start: int | None = None) -> int:  # fmt: skip
        offset = 64 + len(self.body)
        where = offset + 64 if start is None else start
        length = len(data) if size is None else size
        meta = struct.pack("<IIQQQ", sentinel, code, length, where, 0)
        self.body += meta.ljust(64, b"\0") + data + b"\0" * (-len(data) % 64)
        self.count += 1
        return offset

    def to_bytes(self) -> bytes:
        return struct.pack("<II", self.count, self.version).ljust(64, b"\0") + self.body


def set_type(message: Any, dtype: str, shape: tuple[int | None, ...]) -> None:
    tensor = message.tensorType
    tensor.dataType, tensor.rank = mil().DataType.Value(dtype), len(shape)
    for extent in shape:
        dim = tensor.dimensions.add()
        if extent is None:
            dim.unknown.variadic = False
        else:
            dim.constant.size = extent


class Program:
    """A function `main` as it grows, and the package around it."""

    def __init__(self, opset: str = "CoreML8") -> None:
        self.model = definitions().Model()
        self.model.specificationVersion = 9
        self.function = self.model.mlProgram.functions["main"]
        self.function.opset = opset
        self.block = self.function.block_specializations[opset]
        self.weights = Weights()

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "FLOAT32",
              ranges: tuple[tuple[int, int], ...] = (), kind: int = 65568) -> None:  # fmt: skip
        named = self.function.inputs.add()
        named.name = name
        fixed = ranges or tuple((d, d) for d in shape)
        set_type(named.type, dtype, tuple(a if a == b else None for a, b in fixed))
        array = self.feature(self.model.description.input, name, kind, shape)
        for low, high in ranges:
            size = array.shapeRange.sizeRanges.add()
            size.lowerBound, size.upperBound = low, high

    def feature(self, where: Any, name: str, kind: int, shape: tuple[int, ...] = ()) -> Any:
        description = where.add()
        description.name = name
        array = description.type.multiArrayType
        array.dataType = kind
        array.shape.extend(shape)
        return array

    def output(self, name: str, kind: int = 65568) -> None:
        self.block.outputs.append(name)
        self.feature(self.model.description.output, name, kind)

    def op(self, kind: str, name: str, dtype: str = "FLOAT32",
           shape: tuple[int | None, ...] = (), **inputs: str | list[str]) -> Any:  # fmt: skip
        operation = self.block.operations.add()
        operation.type = kind
        out = operation.outputs.add()
        out.name = name
        set_type(out.type, dtype, shape)
        for key, names in inputs.items():
            for one in [names] if isinstance(names, str) else names:
                operation.inputs[key].arguments.add().name = one
        return operation

    def const(self, name: str, value: Any, dtype: str) -> Any:
        """A constant held in the program itself."""
        array = np.asarray(value)
        operation = self.op("const", name, dtype, array.shape)
        val = operation.attributes["val"]
        set_type(val.type, dtype, array.shape)
        tensor = val.immediateValue.tensor
        if dtype == "STRING":
            tensor.strings.values.extend(str(v) for v in array.reshape(-1))
        elif dtype == "FLOAT16":
            tensor.bytes.values = array.astype(np.float16).tobytes()
        elif dtype == "BOOL":
            tensor.bools.values.extend(bool(v) for v in array.reshape(-1))
        elif dtype == "FLOAT32":
            tensor.floats.values.extend(float(v) for v in array.reshape(-1))
        else:
            tensor.ints.values.extend(int(v) for v in array.reshape(-1))
        return operation

    def blob(self, name: str, dtype: str, shape: tuple[int, ...], data: bytes, *,
             file: str = "@model_path/weights/weight.bin", offset: int | None = None,
             **faults: int) -> Any:  # fmt: skip
        """A constant in `weight.bin`."""
        at = self.weights.add(data, faults.pop("code", CODES.get(dtype, 0)), **faults)
        operation = self.op("const", name, dtype, shape)
        val = operation.attributes["val"]
        set_type(val.type, dtype, shape)
        val.blobFileValue.fileName = file
        val.blobFileValue.offset = at if offset is None else offset
        return operation

    def save(self, folder: Path) -> Path:
        """Writes `<folder>/model.mlpackage`."""
        package = folder / "model.mlpackage"
        data = package / "Data" / "com.apple.CoreML"
        (data / "weights").mkdir(parents=True)
        (data / "model.mlmodel").write_bytes(self.model.SerializeToString())
        (data / "weights" / "weight.bin").write_bytes(self.weights.to_bytes())
        items = {"A": "model.mlmodel", "B": "weights"}
        entries = {
            key: {"author": "com.apple.CoreML", "description": name, "name": name,
                  "path": f"com.apple.CoreML/{name}"}
            for key, name in items.items()
        }  # fmt: skip
        manifest = {
            "fileFormatVersion": "1.0.0",
            "itemInfoEntries": entries,
            "rootModelIdentifier": "A",
        }
        (package / "Manifest.json").write_text(json.dumps(manifest))
        return package


def model_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


def weight_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


def doubling() -> Program:
    """`y = x + x`, with an fp16 weight of 4 elements beside it."""
    program = Program()
    program.input("x", (2, 3))
    program.blob("w", "FLOAT16", (4,), np.arange(4, dtype=np.float16).tobytes())
    program.op("add", "y", shape=(2, 3), x="x", y="x")
    program.output("y")
    return program
