"""What Core ML's Python interface takes and gives back, to and from what sessions do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import DType, Feature, Model, Pipeline
from pytest_ane.reference.dtypes import carried
from pytest_ane.reference.images import mode, to_pixels

_DTYPES: dict[DType, Any] = {DType.FP16: np.float32, DType.FP32: np.float32,
                             DType.FP64: np.float64, DType.INT32: np.int32,
                             DType.INT8: np.int8}  # fmt: skip
"""As coremltools gives out multi-arrays: fp16 as fp32."""


def given(model: Model | Pipeline, data: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs in the declared types: coremltools hands over fp16 as fp32, and any number as such.

    Raises:
        ExecutionError: a value that is no array of numbers.
    """
    features = {f.name: f for f in model.inputs}
    return {
        name: _given(model, features[name], value) if name in features else value
        for name, value in data.items()
    }


def _given(model: Model | Pipeline, feature: Feature, value: Any) -> Any:
    if feature.kind == "image":
        return value
    array = _array(value)
    if array is None or array.dtype.kind not in "biuf":
        what = type(value).__name__ if array is None else f"an array of {array.dtype}"
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is {what}, not an array of numbers."
        )
    with np.errstate(all="ignore"):
        array = array.astype(carried(feature.dtype), copy=False)
    fixed = not feature.ranges and not feature.enumerated
    one = fixed and array.size == 1 == np.prod(feature.shape)
    return array.reshape(feature.shape) if one else array


def _array(value: Any) -> Any:
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return None


def returned(model: Model | Pipeline, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as Core ML returns them.

    Multi-arrays have the declared type (fp16 comes as fp32), a scalar has one element; images are
    PIL images; a classifier's label is text or a number, its probabilities are a dictionary.

    Raises:
        ExecutionError: an image is declared and PIL is not installed, or the result is none.
    """
    features = {f.name: f for f in model.outputs}
    return {
        name: _returned(model, features.get(name), value)
        for name, value in outputs.items()
        if not features or name in features
    }


def _returned(model: Model | Pipeline, feature: Feature | None, value: Any) -> Any:
    kind = feature.kind if feature is not None else ""
    if isinstance(value, dict):
        return {_label(key): float(probability) for key, probability in value.items()}
    if kind in ("int64Type", "stringType") or not isinstance(value, (np.ndarray, np.generic)):
        return _label(value)
    value = np.asarray(value)
    if feature is not None and kind == "image":
        return _image(model, feature, value)
    dtype = _DTYPES.get(feature.dtype if feature is not None else DType.STRING, value.dtype)
    return np.array(value.reshape(1) if value.ndim == 0 else value, dtype)


def _label(value: Any) -> Any:
    """A label as Python's own text or number."""
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value


def _image(model: Model | Pipeline, feature: Feature, value: Any) -> Any:
    """A PIL image; coremltools returns colours with an alpha of 255 beside them."""
    try:
        from PIL import Image
    except ImportError:
        raise ExecutionError(
            f"{model.path}: output {feature.name!r} is an image; run: pip install pillow"
        ) from None
    try:
        pixels = to_pixels(feature, value)
    except ValueError as error:
        raise ExecutionError(f"{model.path}: output {feature.name!r} has {error}.") from None
    image = Image.fromarray(pixels)
    return image.convert("RGBA") if mode(feature) == "RGB" else image
