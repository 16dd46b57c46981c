"""Inputs checked against the features that a model declares; images to and from tensors.

A program sees an image as `[1, C, H, W]` with values from 0 to 255 (GRAYSCALE_FLOAT16: any fp16
number), its channels in the order that the feature declares. Scale and bias are operations of the
program. Pixels are PIL images, or arrays of the same layout: `[H, W, 3]` in the order red, green,
blue, or `[H, W]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.budget import Budget
from pytest_ane.mlprogram.executor.dtypes import (
    FLOATS,
    Precision,
    carried,
    convert,
    itemsize,
    round_fp16,
)
from pytest_ane.mlprogram.records import DType, Feature, MLModel, Pipeline, TensorType

_MODES = {"RGB": "RGB", "BGR": "RGB", "GRAYSCALE": "L", "GRAYSCALE_FLOAT16": "F"}


def mode(feature: Feature) -> str:
    """PIL's mode of an image feature's pixels; empty for an undeclared color space."""
    return _MODES.get(feature.color, "")


def is_color(feature: Feature) -> bool:
    """Whether pixels have three channels, in any order."""
    return mode(feature) == "RGB"


def open_picture(path: Path) -> Any:
    """A picture of any format that Pillow reads, as a PIL image.

    `ValueError` where there is none, it is damaged or absurdly large, or Pillow is not installed;
    its message follows the file's name in a sentence.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("needs Pillow, run: pip install pillow") from None
    try:
        with Image.open(path) as image:
            image.load()
            return image.copy()
    except FileNotFoundError:
        raise ValueError("does not exist") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"is no picture ({error})") from None


def to_tensor(feature: Feature, image: Any) -> Array:
    """The tensor `[1, C, H, W]`, float32, of a PIL image or an array of pixels.

    `ValueError` of the mode, dtype or shape that does not fit.
    """
    pixels = _pixels(feature, image)
    rank = 3 if is_color(feature) else 2
    fits = pixels.ndim == rank and pixels.shape[2:] in ((), (3,))
    if not fits or not shape_fits(feature, pixels.shape[:2]):
        raise ValueError(f"shape {list(pixels.shape)}")
    if rank == 2:
        planes = pixels[None]
    else:
        planes = np.moveaxis(pixels[..., ::-1] if feature.color == "BGR" else pixels, 2, 0)
    if feature.dtype is DType.FP16:
        return round_fp16(planes[None])
    return np.ascontiguousarray(planes[None], np.float32)


def _pixels(feature: Feature, image: Any) -> Array:
    """The pixels `[H, W]` or `[H, W, 3]` of an image; an alpha channel is left out."""
    array, pil_mode = np.asarray(image), getattr(image, "mode", None)
    if pil_mode is not None:
        if pil_mode != mode(feature) and not (pil_mode == "RGBA" and is_color(feature)):
            raise ValueError(f"PIL mode {pil_mode}")
        return array[..., :3] if pil_mode == "RGBA" else array
    fits = array.dtype.kind == "f" if feature.dtype is DType.FP16 else array.dtype == np.uint8
    if not fits:
        raise ValueError(f"dtype {array.dtype}")
    return array


def shape_fits(feature: Feature, shape: tuple[int, ...]) -> bool:
    """Whether a feature allows a tensor's shape, or an image's `(height, width)`."""
    if feature.enumerated:
        return shape in feature.enumerated or shape == feature.shape
    if not feature.ranges:
        return shape == feature.shape
    return len(shape) == len(feature.ranges) and all(
        low <= d and (high is None or d <= high)
        for d, (low, high) in zip(shape, feature.ranges, strict=True)
    )


def to_pixels(feature: Feature, tensor: Array) -> Array:
    """Pixels of a program's result: uint8 `[H, W, 3]` or `[H, W]`, or float32 `[H, W]`.

    Values beyond 0..255 are clipped, fractions rounded to the nearest, NaN is 0. Core ML does not
    document its rounding; on whole numbers, which coremltools' tests compare, all ways agree.
    """
    channels = 3 if is_color(feature) else 1
    if tensor.ndim != 4 or tensor.shape[:2] != (1, channels):
        raise ValueError(f"shape {list(tensor.shape)}, not [1, {channels}, H, W]")
    if feature.dtype is DType.FP16:
        return round_fp16(tensor[0, 0])
    whole = np.rint(np.nan_to_num(tensor[0], nan=0.0, posinf=255.0, neginf=0.0))
    planes = np.clip(whole, 0, 255).astype(np.uint8)
    if channels == 1:
        return np.array(planes[0])
    planes = planes[::-1] if feature.color == "BGR" else planes
    return np.ascontiguousarray(np.moveaxis(planes, 0, 2))


def bind_inputs(
    model: MLModel | Pipeline, inputs: Mapping[str, Any], precision: Precision
) -> dict[str, Array]:
    """Inputs in the form operations take them, checked against the declared features.

    Floating-point arrays of any width are accepted for floating-point features, as Core ML's
    Python interface does; so are integers for integers where no value changes. Images are PIL
    images or arrays of pixels. An optional input left out has its default in every element; of a
    pipeline it stays out.
    """
    check_names(model.path, model.inputs, inputs)
    main = None if isinstance(model, Pipeline) else model.main
    types = {} if main is None else {named.name: named.type for named in main.inputs}
    bound = {}
    with np.errstate(all="ignore"):
        for feature in model.inputs:
            name, kind = feature.name, types.get(feature.name)
            dtype = kind.dtype if isinstance(kind, TensorType) else feature.dtype
            if name in inputs and feature.kind == "image":
                array = _image(model, feature, inputs[name])
            elif name in inputs:
                array = _tensor(model, feature, inputs[name], dtype)
            elif main is None and feature.optional:
                continue
            elif feature.optional and feature.default is not None:
                array = np.full(feature.shape, feature.default, carried(feature.dtype))
            else:
                raise refusal(model, feature, "is missing")
            bound[name] = convert(array, dtype, precision)
    return bound


def check_interface(model: MLModel, precision: Precision, budget: Budget) -> None:
    """Check that the smallest inputs, and the states, fit the memory allowed.

    A program that declares what does not may be a few bytes.
    """
    for kind, features in (("input", model.inputs), ("state", model.states)):
        for feature in features:
            shape = feature.shape or [low for low, _ in feature.ranges]
            what = f"{model.path}: {kind} {feature.name!r}"
            size = itemsize([TensorType(feature.dtype, ())], precision)
            budget.check_tensor(what, shape, size, words=2)  # As it is given, and as it is carried.


def check_names(path: str, features: tuple[Feature, ...], inputs: Mapping[str, Any]) -> None:
    """Check that every input is declared."""
    names = [f.name for f in features]
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
    shown = [str(a) if a == b else f"{a}..{'' if b is None else b}" for a, b in feature.extents]
    return f"[{', '.join([*shown, *map(str, last)])}]"


def refusal(model: MLModel | Pipeline, feature: Feature, problem: str) -> ExecutionError:
    """Of an input, with what it takes."""
    says = f"input {feature.name!r} {problem}; it takes {present(feature)}"
    return ExecutionError(f"{model.path}: {says}.")


def to_picture(model: MLModel | Pipeline, feature: Feature, pixels: Array) -> Any:
    """Pixels that fit an image input, as a PIL image."""
    from PIL import Image

    _image(model, feature, pixels)
    return Image.fromarray(pixels.astype(np.float32) if pixels.dtype.kind == "f" else pixels)


def _image(model: MLModel | Pipeline, feature: Feature, image: Any) -> Array:
    """The pixels of an image input, as `to_tensor` gives them."""
    if not mode(feature):
        says = f"input {feature.name!r} is an image of the colours {feature.color or 'unknown'!r}"
        raise ExecutionError(f"{model.path}: {says}; known are {', '.join(_MODES)}.")
    try:
        return to_tensor(feature, image)
    except ValueError as error:
        raise refusal(model, feature, f"has {error}") from None


def _tensor(model: MLModel | Pipeline, feature: Feature, value: Any, dtype: DType) -> Array:
    """An array of an allowed shape; floats of any width, integers where no value changes."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise refusal(model, feature, f"is no array ({error})") from None
    anything = feature.kind != "tensor" or not (feature.shape or feature.ranges)
    if not anything and not shape_fits(feature, array.shape):
        raise refusal(model, feature, f"has shape {list(array.shape)}")
    if dtype in FLOATS:
        if array.dtype.kind != "f":
            raise refusal(model, feature, f"has dtype {array.dtype}")
        return array
    whole = array.astype(carried(dtype), copy=False) if array.dtype.kind in "iub" else array
    if array.dtype.kind not in "iub" or not np.array_equal(whole, array):
        raise refusal(model, feature, f"has dtype {array.dtype}")
    return whole
