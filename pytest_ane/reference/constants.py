"""Constants and parameters in the form operations take them: arrays, Python numbers, texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mil.blob import load
from pytest_ane.mil.records import Blob, MLModel, TensorType, Value
from pytest_ane.reference.dtypes import Precision, carried


def constant(model: MLModel, value: Value, precision: Precision = "as-typed") -> Any:
    """A constant's data: scalars as Python numbers, fp16 as float32, weights decoded."""
    if not isinstance(value.type, TensorType) or isinstance(value.data, (str, tuple, dict)):
        return value.data
    if not isinstance(value.data, Blob) and value.type.shape == ():
        return np.asarray(value.data).item()
    return load(model, value).astype(carried(value.type.dtype, precision), copy=False)


def integers(values: Any) -> list[int]:
    """A parameter of integers or booleans, scalar or vector, as a list of Python's."""
    numbers: list[int] = np.asarray(values).reshape(-1).tolist()
    return numbers
