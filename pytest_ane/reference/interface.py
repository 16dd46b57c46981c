"""Inputs checked against the features that a model declares, and brought into the carried types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import DType, Feature, MLModel, TensorType
from pytest_ane.reference.dtypes import FLOATS, Array, Precision, carried, converter
from pytest_ane.reference.images import is_color, mode, to_tensor


def bind_inputs(
    model: MLModel, inputs: Mapping[str, Any], precision: Precision
) -> dict[str, Array]:
    """Inputs in the form operations take them, checked against the declared features.

    Floating-point arrays of any width are accepted for floating-point features, as Core ML's
    Python interface does; so are integers for integers where no value changes. Images are PIL
    images or arrays of pixels. An optional input left out has its default in every element.

    Raises:
        ExecutionError: one sentence with what is accepted.
    """
    check_names(model.path, model.inputs, inputs)
    types = {named.name: named.type for named in model.main.inputs}
    bound = {}
    with np.errstate(all="ignore"):
        for feature in model.inputs:
            kind = types.get(feature.name)
            kind = kind if isinstance(kind, TensorType) else TensorType(feature.dtype)
            array = _checked(model, feature, inputs, kind.dtype)
            bound[feature.name] = converter(kind, precision, moves=False)(array)
    return bound


def _checked(model: MLModel, feature: Feature, inputs: Mapping[str, Any], dtype: DType) -> Array:
    """A feature's array or tensor of pixels, or its default."""
    if feature.name not in inputs:
        return _default(model, feature)
    if feature.kind == "image":
        return _image(model, feature, inputs[feature.name])
    return _typed(model, feature, _array(model, feature, inputs[feature.name]), dtype)


def _array(model: MLModel, feature: Feature, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is no array ({error}); it takes "
            f"{present(feature)}."
        ) from None


def check_names(path: str, features: tuple[Feature, ...], inputs: Mapping[str, Any]) -> None:
    """Check that every input is declared.

    Raises:
        ExecutionError: one is not; names the inputs there are.
    """
    names = [f.name for f in features]
    if not isinstance(inputs, Mapping):
        raise ExecutionError(
            f"{path}: inputs are of type {type(inputs).__name__}; give them by name: "
            f"{', '.join(names)}."
        )
    for name in inputs:
        if name not in names:
            raise ExecutionError(f"{path}: no input {name!r}; inputs are: {', '.join(names)}.")


def present(feature: Feature) -> str:
    """Words for what a feature takes, such as `fp16 [1, 576, 1..64, 1]`."""
    if feature.kind != "image":
        return f"{feature.dtype} {_extents(feature, ())}"
    extents = _extents(feature, (3,) if is_color(feature) else ())
    return f"a PIL image of mode {mode(feature)} or {feature.dtype} {extents}"


def _extents(feature: Feature, last: tuple[int, ...]) -> str:
    """The shapes a feature may have, each followed by the dimensions `last`."""
    if feature.enumerated:
        return "of shape " + " or ".join(str([*shape, *last]) for shape in feature.enumerated)
    ranges = feature.ranges or tuple((d, d) for d in feature.shape)
    shown = [str(a) if a == b else f"{a}..{'' if b is None else b}" for a, b in ranges]
    return f"[{', '.join([*shown, *map(str, last)])}]"


def _default(model: MLModel, feature: Feature) -> Array:
    if not feature.optional or feature.default is None:
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is missing; it takes {present(feature)}."
        )
    return np.full(feature.shape, feature.default, carried(feature.dtype))


def _image(model: MLModel, feature: Feature, image: Any) -> Array:
    if not mode(feature):
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is an image of the colours "
            f"{feature.color or 'unknown'!r}; RGB, BGR, GRAYSCALE and GRAYSCALE_FLOAT16 are known."
        )
    try:
        return to_tensor(feature, image)
    except ValueError as error:
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} has {error}; it takes {present(feature)}."
        ) from None


def _typed(model: MLModel, feature: Feature, array: Array, dtype: DType) -> Array:
    """An array of an allowed shape; floats of any width, integers where no value changes."""

    def refused(what: str) -> ExecutionError:
        return ExecutionError(
            f"{model.path}: input {feature.name!r} has {what}; it takes {present(feature)}."
        )

    if not _shape_fits(feature, array.shape):
        raise refused(f"shape {list(array.shape)}")
    if dtype in FLOATS:
        if array.dtype.kind != "f":
            raise refused(f"dtype {array.dtype}")
        return array
    whole = array.astype(carried(dtype), copy=False) if array.dtype.kind in "iub" else array
    if array.dtype.kind not in "iub" or not np.array_equal(whole, array):
        raise refused(f"dtype {array.dtype}")
    return whole


def _shape_fits(feature: Feature, shape: tuple[int, ...]) -> bool:
    if feature.kind != "tensor" or not (feature.shape or feature.ranges):
        return True
    if feature.enumerated:
        return shape in feature.enumerated or shape == feature.shape
    ranges = feature.ranges or tuple((d, d) for d in feature.shape)
    return len(shape) == len(ranges) and all(
        low <= d and (high is None or d <= high)
        for d, (low, high) in zip(shape, ranges, strict=True)
    )
