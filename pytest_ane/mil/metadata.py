"""`metadata.json` of a compiled model: its inputs, outputs and states, in the compiler's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.features import check_extents, check_ranges
from pytest_ane.mil.files import read_file
from pytest_ane.mil.records import DType, Feature

_MOST_BYTES = 1 << 26
_ARRAYS = {"Float16": DType.FP16, "Float32": DType.FP32, "Double": DType.FP64,
           "Float64": DType.FP64, "Int32": DType.INT32, "Int8": DType.INT8}  # fmt: skip
# Types that are no arrays, by the compiler's name: the name in the protobuf, and what it holds.
_SCALARS = {"Int64": ("int64Type", DType.INT64), "Double": ("doubleType", DType.FP64),
            "String": ("stringType", DType.STRING)}  # fmt: skip
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
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def features(self, function: str, schema: str) -> tuple[Feature, ...]:
        """The features of `inputSchema`, `outputSchema` or `stateSchema` of a function.

        A model of several functions has a table for each of them; others have one for all.
        """
        try:
            tables = {f["name"]: f for f in self._content.get("functions", ())}
            entries = tables.get(function, self._content).get(schema, ())
            return tuple(self._feature(entry) for entry in entries)
        except _DAMAGED as error:
            raise self._damaged(error) from None

    def _feature(self, entry: Mapping[str, Any]) -> Feature:
        name, kind = str(entry["name"]), str(entry["type"])
        optional = str(entry.get("isOptional", "0")) == "1"
        if kind in ("MultiArray", "State"):
            return self._array(name, "state" if kind == "State" else "tensor", optional, entry)
        if kind == "Image":
            size = (int(entry["height"]), int(entry["width"]))
            check_extents((size,), name, self.file)
            color = str(entry.get("colorspace", "")).upper()
            dtype = DType.FP16 if color == "GRAYSCALE_FLOAT16" else DType.UINT8
            return Feature(name, dtype, size, kind="image", optional=optional, color=color)
        word, dtype = _SCALARS.get(kind, (kind, DType.STRING))
        return Feature(name, dtype, (), kind=word, optional=optional)

    def _array(self, name: str, kind: str, optional: bool, entry: Mapping[str, Any]) -> Feature:
        if (dtype := str(entry["dataType"])) not in _ARRAYS:
            raise ProgramError(f"{self.file}: feature {name!r} has the unknown type {dtype}.")
        shape = _extents(_listed(entry.get("shape")))
        shapes = tuple(map(_extents, _listed(entry.get("enumeratedShapes"))))
        ranges = tuple(
            (int(low), int(high) if high >= 0 else None)
            for low, high in _listed(entry.get("shapeRange"))
        )
        check_extents((shape, *shapes), name, self.file)
        check_ranges(ranges, shape, name, self.file)
        return Feature(name, _ARRAYS[dtype], shape, ranges, shapes, kind, optional)

    def _damaged(self, error: Exception) -> ProgramError:
        return ProgramError(f"{self.file}: damaged ({error!r:.200}); compile the model again.")


def _listed(text: Any) -> Any:
    """A list: the compiler writes it as a text, such as `"[[1, 1], [1, 32000]]"`."""
    return json.loads(text) if isinstance(text, str) else text or ()


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in shape)
