"""Inputs checked against the features that a model declares, and brought into the carried types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.budget import Budget
from pytest_ane.mlprogram.executor.dtypes import FLOATS, Precision, carried, convert, itemsize
from pytest_ane.mlprogram.executor.images import is_color, mode, shape_fits, to_tensor
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Pipeline, TensorType


def bind_inputs(
    model: MLModel | Pipeline, inputs: Mapping[str, Any], precision: Precision
) -> dict[str, Array]:
    """Inputs in the form operations take them, checked against the declared features.

    Floating-point arrays of any width are accepted for floating-point features, as Core ML's
    Python interface does; so are integers for integers where no value changes. Images are PIL
    images or arrays of pixels. An optional input left out has its default in every element; of a
    pipeline it stays out.

    Raises:
        ExecutionError: one sentence with what is accepted.
    """
    check_names(model.path, model.inputs, inputs)
    whole = isinstance(model, Pipeline)
    types = {} if isinstance(model, Pipeline) else {n.name: n.type for n in model.main.inputs}
    bound = {}
    with np.errstate(all="ignore"):
        for feature in model.inputs:
            kind = types.get(feature.name)
            dtype = kind.dtype if isinstance(kind, TensorType) else feature.dtype
            if feature.name not in inputs and whole and feature.optional:
                continue
            if feature.name not in inputs:
                array = _default(model, feature)
            elif feature.kind == "image":
                array = _image(model, feature, inputs[feature.name])
            else:
                array = _tensor(model, feature, inputs[feature.name], dtype)
            bound[feature.name] = convert(array, dtype, precision)
    return bound


def check_interface(model: MLModel, precision: Precision, budget: Budget) -> None:
    """Check that the smallest inputs, and the states, fit the memory allowed.

    Raises:
        BudgetError: one does not; a program that declares it may be a few bytes.
    """
    for kind, features in (("input", model.inputs), ("state", model.states)):
        for feature in features:
            shape = feature.shape or [low for low, _ in feature.ranges]
            what = f"{model.path}: {kind} {feature.name!r}"
            size = itemsize([TensorType(feature.dtype, ())], precision)
            budget.check_tensor(what, shape, size, words=2)  # As it is given, and as it is carried.


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


def _refusal(model: MLModel | Pipeline, feature: Feature, problem: str) -> ExecutionError:
    return ExecutionError(
        f"{model.path}: input {feature.name!r} {problem}; it takes {present(feature)}."
    )


def _default(model: MLModel | Pipeline, feature: Feature) -> Array:
    """The default of an optional input in every element."""
    if not feature.optional or feature.default is None:
        raise _refusal(model, feature, "is missing")
    return np.full(feature.shape, feature.default, carried(feature.dtype))


def to_picture(model: MLModel | Pipeline, feature: Feature, pixels: Array) -> Any:
    """Pixels that fit an image input, as a PIL image.

    Raises:
        ExecutionError: they do not fit.
        ImportError: Pillow is not installed.
    """
    from PIL import Image

    _image(model, feature, pixels)
    return Image.fromarray(pixels.astype(np.float32) if pixels.dtype.kind == "f" else pixels)


def _image(model: MLModel | Pipeline, feature: Feature, image: Any) -> Array:
    """The pixels of an image input, as `images.to_tensor` gives them."""
    if not mode(feature):
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is an image of the colours "
            f"{feature.color or 'unknown'!r}; RGB, BGR, GRAYSCALE and GRAYSCALE_FLOAT16 are known."
        )
    try:
        return to_tensor(feature, image)
    except ValueError as error:
        raise _refusal(model, feature, f"has {error}") from None


def _tensor(model: MLModel | Pipeline, feature: Feature, value: Any, dtype: DType) -> Array:
    """An array of an allowed shape; floats of any width, integers where no value changes."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _refusal(model, feature, f"is no array ({error})") from None
    anything = feature.kind != "tensor" or not (feature.shape or feature.ranges)
    if not anything and not shape_fits(feature, array.shape):
        raise _refusal(model, feature, f"has shape {list(array.shape)}")
    if dtype in FLOATS:
        if array.dtype.kind != "f":
            raise _refusal(model, feature, f"has dtype {array.dtype}")
        return array
    whole = array.astype(carried(dtype), copy=False) if array.dtype.kind in "iub" else array
    if array.dtype.kind not in "iub" or not np.array_equal(whole, array):
        raise _refusal(model, feature, f"has dtype {array.dtype}")
    return whole
