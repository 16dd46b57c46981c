"""What Core ML's Python interface takes and gives back, to and from what sessions do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_ane.errors import ExecutionError
from pytest_ane.mil.records import DType, Feature, Model
from pytest_ane.reference.dtypes import carried


def given(model: Model, data: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs in the declared types: coremltools hands over fp16 as fp32, and any number as such.

    Raises:
        ExecutionError: a value that is no array of numbers.
    """
    features = {f.name: f for f in model.inputs}
    return {
        name: _given(features[name], value) if name in features else value
        for name, value in data.items()
    }


def _given(feature: Feature, value: Any) -> Any:
    if feature.kind == "image":
        return value
    try:
        array = np.asarray(value).astype(carried(feature.dtype), copy=False)
    except (TypeError, ValueError) as error:
        raise ExecutionError(f"input {feature.name!r} is no array of numbers: {error}.") from None
    fits = not feature.ranges and not feature.enumerated and array.size == 1
    return array.reshape(feature.shape) if fits and np.prod(feature.shape) == 1 else array


def returned(model: Model, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as Core ML returns them: fp16 as fp32, a scalar as an array of one element."""
    features = {f.name: f for f in model.outputs}
    return {
        name: _returned(features.get(name), value)
        for name, value in outputs.items()
        if not features or name in features
    }


def _returned(feature: Feature | None, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if feature is not None and feature.kind == "int64Type":
        return int(value)
    wide = value.astype(np.float32) if value.dtype == np.float16 else value
    if feature is not None and feature.dtype is DType.INT32:
        wide = wide.astype(np.int32)
    return np.array(wide.reshape(1) if wide.ndim == 0 else wide)
