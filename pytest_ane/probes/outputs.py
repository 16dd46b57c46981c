"""Outputs that are no plain tensors: pictures, and the objects that a detector found.

Pictures are compared as their pixels, which is what a caller gets.

A detector gives a row for each object, those of which it is most sure first. Two right ones seldom
give the same rows: a confidence that is a little lower changes the order, and one at the threshold
the number. So each object of the reference is matched with the one of the artifact that overlaps it
most, as benchmarks of detectors do, and what has no partner is compared with zeros.

On noise there are no objects, and near ties decide which boxes are left. There the numbers that
enter the suppression are compared in their place, where the backend shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.interface import is_color, to_pixels
from pytest_ane.mlprogram.executor.ops.sorting import overlaps
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Pipeline


class Detection(NamedTuple):
    """Names of confidences `[K, C]` and boxes `[K, 4]`: of the outputs, and before suppression."""

    outputs: tuple[str, str]
    raw: tuple[str, str]


_Rows: TypeAlias = "Mapping[str, FloatArray]"
_OVERLAP = 0.5
"""Least intersection over union of a match, that of PASCAL VOC (Everingham et al., 2010)."""
_GREY = 127.5
"""Middle of 0 to 255: a cosine of numbers that are all positive hides their differences."""


@dataclass(frozen=True)
class Kinds:
    """Which outputs of a model are no plain tensors.

    Attributes:
        images: pictures, by name.
        detections: detected objects.
    """

    images: Mapping[str, Feature] = field(default_factory=dict)
    detections: tuple[Detection, ...] = ()


def output_kinds(model: MLModel | Pipeline) -> Kinds:
    """Which outputs of a package are pictures or detected objects."""
    return Kinds(
        {feature.name: feature for feature in model.outputs if feature.kind == "image"},
        tuple(
            Detection(*((part.confidence[end], part.coordinates[end]) for end in (1, 0)))
            for part in (model.suppressions if isinstance(model, Pipeline) else ())
        ),
    )


def pixel_row(feature: Feature, output: Any) -> FloatArray:
    """A picture as one row of its pixels less 127.5, float32; half-precision greys as they are.

    Args:
        feature: the output as the model declares it.
        output: the program's tensor `[1, C, H, W]`, or pixels, in a PIL image or an array.

    Raises:
        ExecutionError: it is no picture of the declared channels.
    """
    if hasattr(output, "mode"):
        output = np.asarray(output.convert("RGB") if is_color(feature) else output)
    pixels = output
    if output.ndim == 4:
        if not np.isfinite(output).all():  # No pixel is; the gate is to see it.
            return np.asarray(output, np.float32).reshape(1, -1)
        try:
            pixels = to_pixels(feature, output)
        except ValueError as error:
            raise ExecutionError(f"output {feature.name!r} has {error}.") from None
    middle = 0.0 if feature.dtype is DType.FP16 else _GREY
    row: FloatArray = np.asarray(pixels, np.float32).reshape(1, -1) - np.float32(middle)
    return row


def aligned(
    actual: _Rows, expected: _Rows, detections: Iterable[Detection], *, pictures: bool = True
) -> tuple[_Rows, _Rows]:
    """Rows of both sides in which all detected objects have become one row.

    Confidences are compared as they are, boxes multiplied by the greatest confidence of their row:
    a box that hardly counts on one side, and is below the threshold on the other, decides little.

    Args:
        actual: the artifact's rows by output.
        expected: the reference's.
        detections: which of the outputs are objects.
        pictures: whether objects may be expected; without, they are left out of both sides where
            both have the numbers before suppression.
    """
    left, right = dict(actual), dict(expected)
    for (confidence, boxes), raw in detections:
        if not pictures and {*raw} <= left.keys() & right.keys():
            for side in (left, right):
                del side[confidence], side[boxes]
        elif {confidence, boxes} <= left.keys() & right.keys():
            matches = _matches((left[confidence], left[boxes]), (right[confidence], right[boxes]))
            for side, order in zip((left, right), zip(*matches, strict=True), strict=True):
                rows = _taken(side[confidence], order)
                sure = rows.max(axis=1, initial=0.0, keepdims=True)
                side[boxes] = (_taken(side[boxes], order) * sure).reshape(1, -1)
                side[confidence] = rows.reshape(1, -1)
    return left, right


def _matches(
    actual: tuple[FloatArray, FloatArray], expected: tuple[FloatArray, FloatArray]
) -> list[tuple[int, int]]:
    """Rows of both sides that belong together, -1 for none; at least one pair."""
    (scores, boxes), (wanted, places) = actual, expected
    free = {*range(len(boxes))}
    pairs = []
    for row in np.argsort(-wanted.max(axis=1, initial=0.0), kind="stable").tolist():
        kind = wanted[row].argmax()
        rivals = [i for i in sorted(free) if scores[i].argmax() == kind]
        shared = overlaps(places[row], boxes[rivals])
        best = int(shared.argmax()) if rivals else -1
        match = rivals[best] if best >= 0 and shared[best] >= _OVERLAP else -1
        free.discard(match)
        pairs.append((match, row))
    return [*pairs, *((i, -1) for i in sorted(free))] or [(-1, -1)]


def _taken(rows: FloatArray, order: tuple[int, ...]) -> FloatArray:
    """Rows in an order; zeros for -1."""
    padded: FloatArray = np.concatenate([rows, np.zeros((1, rows.shape[1]), np.float32)])
    taken: FloatArray = padded[list(order)]
    return taken
