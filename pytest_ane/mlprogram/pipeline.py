"""Parts of pipelines: their names, and Core ML's own non-maximum suppression among them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ane.manifest.ids import ID
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.features import read_features
from pytest_ane.mlprogram.records import (
    DType,
    Feature,
    MLModel,
    NonMaximumSuppression,
    Part,
    Pipeline,
)


def read_suppression(message: Any, path: str, file: Path) -> NonMaximumSuppression:
    """A suppression from a message `Model` that holds one.

    Raises:
        ProgramError: it lacks an input or output that it names, or a threshold is no number from 0.
    """
    nms, kind = message.nonMaximumSuppression, message.nonMaximumSuppression.WhichOneof
    labels = getattr(nms, kind("ClassLabels")).vector if kind("ClassLabels") else ()
    overrides = (nms.iouThresholdInputFeatureName, nms.confidenceThresholdInputFeatureName)
    declared = read_features(message.description.input, file)
    known = {feature.name for feature in declared}
    thresholds = [Feature(name, DType.FP64, (), kind="doubleType")
                  for name in overrides if name and name not in known]  # fmt: skip
    part = NonMaximumSuppression(
        path=path,
        specification_version=message.specificationVersion,
        inputs=_optional((*declared, *thresholds), overrides),
        outputs=read_features(message.description.output, file),
        iou_threshold=nms.iouThreshold,
        confidence_threshold=nms.confidenceThreshold,
        per_class=nms.pickTop.perClass,
        labels=tuple(labels),
        confidence=(nms.confidenceInputFeatureName, nms.confidenceOutputFeatureName),
        coordinates=(nms.coordinatesInputFeatureName, nms.coordinatesOutputFeatureName),
        iou_input=overrides[0],
        confidence_threshold_input=overrides[1],
    )
    _check(part, file)
    return part


def _check(part: NonMaximumSuppression, file: Path) -> None:
    for word, features, index in (("input", part.inputs, 0), ("output", part.outputs, 1)):
        names = {feature.name for feature in features}
        for name in (part.confidence[index], part.coordinates[index]):
            if name not in names:
                raise ProgramError(
                    f"{file}: a nonMaximumSuppression names the {word} {name!r}, which it does not "
                    "declare; export the detector again."
                )
    for name in ("iouThreshold", "confidenceThreshold"):
        if not (math.isfinite(value := part.settings[name]) and value >= 0):
            raise ProgramError(
                f"{file}: a nonMaximumSuppression has {name} = {value:g}; it must be "
                "a number from 0 on."
            )


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
    return tuple(
        replace(feature, optional=True) if feature.name in optional else feature
        for feature in features
    )


def part_names(count: int, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of a pipeline's parts: its own where each has one, else `part1`, `part2`...

    Names that are no ids of functions, such as those with spaces, count as none.
    """
    if len({*names}) == count and all(re.fullmatch(ID, name) for name in names):
        return tuple(names)
    return tuple(f"part{i}" for i in range(1, count + 1))


def chosen_part(pipeline: Pipeline, name: str, file: Path) -> MLModel:
    """The ML Program of a pipeline that has a name.

    Raises:
        ProgramError: there is none; names those there are.
    """
    if (part := pipeline.programs.get(name)) is None:
        raise no_such_part(file, name, pipeline.programs)
    return part


def no_such_part(file: Path, name: str, programs: Iterable[str]) -> ProgramError:
    """The error of a name that no ML Program of a pipeline has."""
    return ProgramError(
        f"{file}: is a pipeline without an ML Program {name!r}; it has "
        f"{', '.join(programs) or 'none'}."
    )
