"""A model's declared inputs, outputs and states."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import DType, Feature

# FeatureTypes.proto, ArrayFeatureType.ArrayDataType.
_ARRAYS = {65552: DType.FP16, 65568: DType.FP32, 65600: DType.FP64, 131104: DType.INT32,
           131080: DType.INT8}  # fmt: skip


def read_features(descriptions: Iterable[Any], file: Path) -> tuple[Feature, ...]:
    """Features from their descriptions.

    Raises:
        ProgramError: an element type that Core ML does not define.
    """
    return tuple(_feature(d, file) for d in descriptions)


def _feature(description: Any, file: Path) -> Feature:
    kind = description.type.WhichOneof("Type")
    name, optional = description.name, description.type.isOptional
    if kind == "multiArrayType":
        return _array(name, description.type.multiArrayType, "tensor", optional, file)
    if kind == "stateType":
        return _array(name, description.type.stateType.arrayType, "state", optional, file)
    if kind == "imageType":
        return _image(name, description.type.imageType, optional, file)
    scalar = {"int64Type": DType.INT64, "doubleType": DType.FP64}.get(kind, DType.STRING)
    return Feature(name, scalar, (), kind=kind or "none", optional=optional)


def _image(name: str, image: Any, optional: bool, file: Path) -> Feature:
    """An image's height and width; both may be flexible."""
    size = image.imageSizeRange
    ranges = tuple(
        (int(r.lowerBound), int(r.upperBound) if r.upperBound >= 0 else None)
        for r in (size.heightRange, size.widthRange)
        if image.HasField("imageSizeRange")
    )
    shapes = tuple((int(s.height), int(s.width)) for s in image.enumeratedSizes.sizes)
    if image.colorSpace not in image.ColorSpace.values():
        raise ProgramError(f"{file}: feature {name!r} has the unknown colors {image.colorSpace}.")
    color = image.ColorSpace.Name(image.colorSpace)
    dtype = DType.FP16 if color == "GRAYSCALE_FLOAT16" else DType.UINT8
    shape = (int(image.height), int(image.width))
    check_extents((shape, *shapes), name, file)
    return Feature(name, dtype, shape, ranges, shapes, "image", optional, color=color)


def _array(name: str, array: Any, kind: str, optional: bool, file: Path) -> Feature:
    if array.dataType not in _ARRAYS:
        raise ProgramError(f"{file}: feature {name!r} has the unknown type {array.dataType}.")
    ranges = tuple(
        (int(r.lowerBound), int(r.upperBound) if r.upperBound >= 0 else None)
        for r in array.shapeRange.sizeRanges
    )
    shapes = tuple(tuple(int(d) for d in s.shape) for s in array.enumeratedShapes.shapes)
    shape = tuple(int(d) for d in array.shape)
    check_extents((shape, *shapes), name, file)
    check_ranges(ranges, shape, name, file)
    given = array.WhichOneof("defaultOptionalValue")
    default = float(getattr(array, given)) if given else None
    return Feature(name, _ARRAYS[array.dataType], shape, ranges, shapes, kind, optional, default)


def check_extents(shapes: Iterable[tuple[int, ...]], name: str, file: Path) -> None:
    """Check that no shape has a negative extent; raises `ProgramError` at the first."""
    for extents in shapes:
        if any(d < 0 for d in extents):
            raise ProgramError(
                f"{file}: feature {name!r} has the impossible shape {list(extents)}."
            )


def check_ranges(
    ranges: tuple[tuple[int, int | None], ...], shape: tuple[int, ...], name: str, file: Path
) -> None:
    """Check that ranges hold some extent, and are as many as the default shape's dimensions.

    Raises:
        ProgramError: they are not.
    """
    if ranges and shape and len(ranges) != len(shape):
        raise ProgramError(
            f"{file}: feature {name!r} has {len(ranges)} ranges for {len(shape)} dimensions."
        )
    for low, high in ranges:
        if low < 0 or (high is not None and low > high):
            raise ProgramError(f"{file}: feature {name!r} has the impossible range {low}..{high}.")
