"""Checking what a caller passes in against what a model declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.errors import ExecutionError
from pytest_ane.mil.records import DType, Feature, Model, TensorType
from pytest_ane.reference.dtypes import Precision, carried, settle

Array = npt.NDArray[Any]
_FLOATS = (DType.FP16, DType.FP32, DType.FP64)


def bind_inputs(
    model: Model, inputs: Mapping[str, Array], precision: Precision
) -> dict[str, Array]:
    """Inputs in the form operations take them, checked against the declared features.

    Floating-point arrays of any width are accepted for floating-point features, as Core ML's
    Python interface does; so are integers for integers where no value changes.

    Raises:
        ExecutionError: one sentence with what is accepted.
    """
    features = {f.name: f for f in model.inputs}
    for name in inputs:
        if name not in features:
            raise ExecutionError(
                f"{model.path}: no input {name!r}; inputs are: {', '.join(features)}."
            )
    types = {named.name: named.type for named in model.main.inputs}
    bound = {}
    for name, feature in features.items():
        if name not in inputs:
            raise ExecutionError(
                f"{model.path}: input {name!r} is missing; it takes {present(feature)}."
            )
        kind = types.get(name)
        dtype = kind.dtype if isinstance(kind, TensorType) else feature.dtype
        array = _checked(model, feature, np.asarray(inputs[name]), dtype)
        bound[name] = settle(array, dtype, precision, moves=False)
    return bound


def present(feature: Feature) -> str:
    """`fp16 [1, 576, 1..64, 1]`."""
    if feature.enumerated:
        return f"{feature.dtype} of shape " + " or ".join(map(str, map(list, feature.enumerated)))
    ranges = feature.ranges or tuple((d, d) for d in feature.shape)
    shown = (str(a) if a == b else f"{a}..{'' if b is None else b}" for a, b in ranges)
    return f"{feature.dtype} [{', '.join(shown)}]"


def _checked(model: Model, feature: Feature, array: Array, dtype: DType) -> Array:
    what = f"{model.path}: input {feature.name!r} has"
    if not _shape_fits(feature, array.shape):
        raise ExecutionError(f"{what} shape {list(array.shape)}; it takes {present(feature)}.")
    if dtype in _FLOATS:
        if array.dtype.kind != "f":
            raise ExecutionError(f"{what} dtype {array.dtype}; it takes {present(feature)}.")
        return array
    whole = array.astype(carried(dtype), copy=False)
    if array.dtype.kind not in "iub" or not np.array_equal(whole, array):
        raise ExecutionError(f"{what} dtype {array.dtype}; it takes {present(feature)}.")
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
