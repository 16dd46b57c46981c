"""Checking what a caller passes in against what a model declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import DType, Feature, MLModel, TensorType
from pytest_ane.reference.dtypes import Precision, carried, rounded, settle
from pytest_ane.reference.images import is_color, mode, to_tensor

Array = npt.NDArray[Any]
_FLOATS = (DType.FP16, DType.FP32, DType.FP64)


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
    # Once for all of them: entering it takes as long as rounding a position.
    with np.errstate(over="ignore", invalid="ignore"):
        for feature in model.inputs:
            kind = types.get(feature.name)
            dtype = kind.dtype if isinstance(kind, TensorType) else feature.dtype
            array = _given(model, feature, inputs, dtype)
            if dtype is DType.FP16 and precision == "as-typed":
                bound[feature.name] = rounded(array)
            else:
                bound[feature.name] = settle(array, dtype, precision, moves=False)
    return bound


class Binder:
    """`bind_inputs` for one model, sooner where all is as it nearly always is."""

    def __init__(self, model: MLModel, precision: Precision) -> None:
        self._model, self._precision = model, precision
        self._plain = _plain(model) if precision == "as-typed" else None

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Inputs in the form operations take them; whoever calls has numpy's warnings off.

        Raises:
            ExecutionError: as `bind_inputs`.
        """
        if not self._fit(inputs):
            return bind_inputs(self._model, inputs, self._precision)
        return {name: rounded(x) for name, x in inputs.items()}

    def _fit(self, inputs: Mapping[str, Any]) -> bool:
        """Whether they are all there is, float32 arrays of shapes that may be."""
        plain = self._plain
        if plain is None or type(inputs) is not dict or inputs.keys() != plain.keys():
            return False
        for name, x in inputs.items():
            if type(x) is not np.ndarray or x.dtype.char != "f" or x.ndim != len(plain[name]):
                return False
            for length, (low, high) in zip(x.shape, plain[name], strict=True):
                if length < low or (high is not None and length > high):
                    return False
        return True


def _plain(model: MLModel) -> Mapping[str, Any] | None:
    """The lengths of every input's axes, least and most, if all are fp16 tensors."""
    types = {named.name: named.type for named in model.main.inputs}
    found = {}
    for feature in model.inputs:
        kind = types.get(feature.name)
        fp16 = isinstance(kind, TensorType) and kind.dtype is DType.FP16
        if not fp16 or feature.kind != "tensor" or feature.enumerated or not feature.shape:
            return None
        found[feature.name] = feature.ranges or tuple((d, d) for d in feature.shape)
    return found


def _given(model: MLModel, feature: Feature, inputs: Mapping[str, Any], dtype: DType) -> Array:
    if feature.name not in inputs:
        return _default(model, feature)
    if feature.kind == "image":
        return _image(model, feature, inputs[feature.name])
    return _checked(model, feature, _array(model, feature, inputs[feature.name]), dtype)


def _array(model: MLModel, feature: Feature, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ExecutionError(
            f"{model.path}: input {feature.name!r} is no array ({error}); it takes "
            f"{present(feature)}."
        ) from None


def check_names(path: str, features: tuple[Feature, ...], inputs: Mapping[str, Any]) -> None:
    """Refuse inputs that no feature declares.

    Raises:
        ExecutionError: names the inputs there are.
    """
    known = [f.name for f in features]
    if not isinstance(inputs, Mapping):
        raise ExecutionError(
            f"{path}: inputs are of type {type(inputs).__name__}; give them by name: "
            f"{', '.join(known)}."
        )
    for name in inputs:
        if name not in known:
            raise ExecutionError(f"{path}: no input {name!r}; inputs are: {', '.join(known)}.")


def present(feature: Feature) -> str:
    """`fp16 [1, 576, 1..64, 1]`, `a PIL image of mode RGB or uint8 [32, 48, 3]`."""
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


def _checked(model: MLModel, feature: Feature, array: Array, dtype: DType) -> Array:

    def refused(what: str) -> ExecutionError:
        return ExecutionError(
            f"{model.path}: input {feature.name!r} has {what}; it takes {present(feature)}."
        )

    if not _shape_fits(feature, array.shape):
        raise refused(f"shape {list(array.shape)}")
    if dtype in _FLOATS:
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
