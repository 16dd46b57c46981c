"""What a model declares: inputs, outputs and states; of a pipeline, its parts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import DType, Feature, NonMaximumSuppression, Part
from pytest_ane.mlprogram.text import ID

# FeatureTypes.proto, ArrayFeatureType.ArrayDataType.
_ARRAYS = {65552: DType.FP16, 65568: DType.FP32, 65600: DType.FP64, 131104: DType.INT32,
           131080: DType.INT8}  # fmt: skip


def read_features(descriptions: Iterable[Any], file: Path) -> tuple[Feature, ...]:
    """Features from their descriptions."""
    return tuple(checked(_feature(d, file), file) for d in descriptions)


def checked(feature: Feature, file: Path) -> Feature:
    """A feature, if its shapes and ranges are possible."""
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
    ends = ((int(size.lowerBound), int(size.upperBound)) for size in sizes)
    return tuple((low, None if high < 0 else high) for low, high in ends)


def read_suppression(message: Any, path: str, file: Path) -> NonMaximumSuppression:
    """A suppression from a message `Model` that holds one."""
    nms, kind = message.nonMaximumSuppression, message.nonMaximumSuppression.WhichOneof
    labels = getattr(nms, kind("ClassLabels")).vector if kind("ClassLabels") else ()
    overrides = (nms.iouThresholdInputFeatureName, nms.confidenceThresholdInputFeatureName)
    declared = read_features(message.description.input, file)
    known = {feature.name for feature in declared}
    thresholds = [Feature(name, DType.FP64, (), kind="doubleType")
                  for name in overrides if name and name not in known]  # fmt: skip
    part = NonMaximumSuppression(
        path=path, specification_version=message.specificationVersion,
        inputs=_optional((*declared, *thresholds), overrides),
        outputs=read_features(message.description.output, file), iou_threshold=nms.iouThreshold,
        confidence_threshold=nms.confidenceThreshold, per_class=nms.pickTop.perClass,
        labels=tuple(labels),
        confidence=(nms.confidenceInputFeatureName, nms.confidenceOutputFeatureName),
        coordinates=(nms.coordinatesInputFeatureName, nms.coordinatesOutputFeatureName),
        iou_input=overrides[0], confidence_threshold_input=overrides[1],
    )  # fmt: skip
    _check(part, file)
    return part


_NMS = "nonMaximumSuppression"


def _check(part: NonMaximumSuppression, file: Path) -> None:
    for word, features, index in (("input", part.inputs, 0), ("output", part.outputs, 1)):
        names = {feature.name for feature in features}
        for name in (part.confidence[index], part.coordinates[index]):
            if name not in names:
                says = f"names the {word} {name!r}, which it does not declare"
                raise ProgramError(f"{file}: a {_NMS} {says}; export the detector again.")
    for name in ("iouThreshold", "confidenceThreshold"):
        if not (math.isfinite(value := part.settings[name]) and value >= 0):
            says = f"has {name} = {value:g}; it must be a number from 0 on"
            raise ProgramError(f"{file}: a {_NMS} {says}.")


def optional_thresholds(inputs: tuple[Feature, ...], parts: Iterable[Part]) -> tuple[Feature, ...]:
    """A pipeline's inputs; the thresholds of its suppressions may be left out.

    The specification makes them overrides of what the model holds, and exporters of detectors do
    not mark them as optional.
    """
    suppressions = [part for part in parts if isinstance(part, NonMaximumSuppression)]
    names = {n for part in suppressions for n in (part.iou_input, part.confidence_threshold_input)}
    return _optional(inputs, names)


def _optional(features: Iterable[Feature], names: Iterable[str]) -> tuple[Feature, ...]:
    optional = {*names}
    return tuple(replace(f, optional=True) if f.name in optional else f for f in features)


def no_program(where: str, kind: str) -> ProgramError:
    """The error of a model of another kind."""
    return ProgramError(
        f'{where}is a {kind}, not an ML Program; convert it again with convert_to="mlprogram".'
    )


def part_names(count: int, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of a pipeline's parts: its own where each has one, else `part1`, `part2`...

    Names that are no ids of functions, such as those with spaces, count as none.
    """
    if len({*names}) == count and all(re.fullmatch(ID, name) for name in names):
        return tuple(names)
    return tuple(f"part{i}" for i in range(1, count + 1))


def no_such_part(file: Path, name: str, programs: Iterable[str]) -> ProgramError:
    """The error of a name that no ML Program of a pipeline has."""
    return ProgramError(
        f"{file}: is a pipeline without an ML Program {name!r}; it has "
        f"{', '.join(programs) or 'none'}."
    )
