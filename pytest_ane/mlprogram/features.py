"""A model's declared inputs, outputs and states."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import DType, Feature

# FeatureTypes.proto, ArrayFeatureType.ArrayDataType.
_ARRAYS = {65552: DType.FP16, 65568: DType.FP32, 65600: DType.FP64, 131104: DType.INT32,
           131080: DType.INT8}  # fmt: skip


def read_features(descriptions: Iterable[Any], file: Path) -> tuple[Feature, ...]:
    """Features from their descriptions.

    Raises:
        ProgramError: an element type that Core ML does not define, or an impossible shape.
    """
    return tuple(checked(_feature(d, file), file) for d in descriptions)


def checked(feature: Feature, file: Path) -> Feature:
    """A feature, if its shapes and ranges are possible.

    Raises:
        ProgramError: a negative extent, a range that holds none, or ranges that are not as many as
            the default shape's dimensions.
    """
    where = f"{file}: feature {feature.name!r} has"
    for shape in (feature.shape, *feature.enumerated):
        if any(extent < 0 for extent in shape):
            raise ProgramError(f"{where} the impossible shape {list(shape)}.")
    ranges, rank = feature.ranges, len(feature.shape)
    if ranges and rank and len(ranges) != rank:
        raise ProgramError(f"{where} {len(ranges)} ranges for {rank} dimensions.")
    for low, high in ranges:
        if low < 0 or (high is not None and low > high):
            raise ProgramError(f"{where} the impossible range {low}..{high}.")
    return feature


def image_dtype(color: str) -> DType:
    """The type of an image's numbers by its layout, such as `RGB`."""
    return DType.FP16 if color == "GRAYSCALE_FLOAT16" else DType.UINT8


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
    ranges = _ranges((size.heightRange, size.widthRange) * image.HasField("imageSizeRange"))
    shapes = tuple((int(s.height), int(s.width)) for s in image.enumeratedSizes.sizes)
    if image.colorSpace not in image.ColorSpace.values():
        raise ProgramError(f"{file}: feature {name!r} has the unknown colors {image.colorSpace}.")
    color = image.ColorSpace.Name(image.colorSpace)
    shape = (int(image.height), int(image.width))
    return Feature(name, image_dtype(color), shape, ranges, shapes, "image", optional, color=color)


def _array(name: str, array: Any, kind: str, optional: bool, file: Path) -> Feature:
    if array.dataType not in _ARRAYS:
        raise ProgramError(f"{file}: feature {name!r} has the unknown type {array.dataType}.")
    ranges = _ranges(array.shapeRange.sizeRanges)
    shapes = tuple(tuple(map(int, s.shape)) for s in array.enumeratedShapes.shapes)
    shape = tuple(map(int, array.shape))
    field = array.WhichOneof("defaultOptionalValue")
    default = float(getattr(array, field)) if field else None
    return Feature(name, _ARRAYS[array.dataType], shape, ranges, shapes, kind, optional, default)


def _ranges(sizes: Iterable[Any]) -> tuple[tuple[int, int | None], ...]:
    """Lower and upper bounds; a negative upper one stands for none."""
    return tuple(
        (int(s.lowerBound), int(s.upperBound) if s.upperBound >= 0 else None) for s in sizes
    )
