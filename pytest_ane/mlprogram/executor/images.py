"""Images at the Core ML boundary: pixels to and from the tensors a program computes with.

A program sees an image as `[1, C, H, W]` with values from 0 to 255 (GRAYSCALE_FLOAT16: any fp16
number), its channels in the order that the feature declares. Scale and bias are operations of the
program. Pixels are PIL images, or arrays of the same layout: `[H, W, 3]` in the order red, green,
blue, or `[H, W]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor.dtypes import round_fp16
from pytest_ane.mlprogram.records import DType, Feature

_MODES = {"RGB": "RGB", "BGR": "RGB", "GRAYSCALE": "L", "GRAYSCALE_FLOAT16": "F"}


def mode(feature: Feature) -> str:
    """PIL's mode of an image feature's pixels; empty for an undeclared color space."""
    return _MODES.get(feature.color, "")


def is_color(feature: Feature) -> bool:
    """Whether pixels have three channels, in any order."""
    return mode(feature) == "RGB"


def open_picture(path: Path) -> Any:
    """A picture of any format that Pillow reads, as a PIL image.

    Raises:
        ValueError: there is none, it is damaged or absurdly large, or Pillow is not installed; the
            message is a part of a sentence that follows the file's name.
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

    Raises:
        ValueError: the image's mode, dtype or shape does not fit; the message is that mode, dtype
            or shape.
    """
    pixels = _pixels(feature, image)
    rank = 3 if is_color(feature) else 2
    if pixels.ndim != rank or (rank == 3 and pixels.shape[2] != 3):
        raise ValueError(f"shape {list(pixels.shape)}")
    if not shape_fits(feature, pixels.shape[:2]):
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
    pil_mode = getattr(image, "mode", None)
    if pil_mode is not None:
        if pil_mode != mode(feature) and not (pil_mode == "RGBA" and is_color(feature)):
            raise ValueError(f"PIL mode {pil_mode}")
        array = np.asarray(image)
        return array[..., :3] if pil_mode == "RGBA" else array
    array = np.asarray(image)
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

    Raises:
        ValueError: the tensor is no single image of the feature's channels.
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
    return np.ascontiguousarray(
        np.moveaxis(planes[::-1] if feature.color == "BGR" else planes, 0, 2)
    )
