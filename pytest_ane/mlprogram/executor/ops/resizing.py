"""Resizing of a tensor's last axes, each by itself; and cropping."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import ints
from pytest_ane.mlprogram.executor.registry import register

SAMPLING_MODES = (
    "DEFAULT", "STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "OFFSET_CORNERS", "UNALIGN_CORNERS",
)  # fmt: skip


def grid(mode: str, span: Any, count: int) -> Any:
    """Where `count` samples lie on intervals from 0 to `span [...]`: `[..., count]` in float64.

    The formulas are those of MIL's `resize_bilinear`, with `Xin = span + 1`.

    Raises:
        ValueError: an unknown mode, or no samples.
    """
    if mode not in SAMPLING_MODES:
        raise ValueError(f"unknown sampling_mode {mode!r}; there are: {', '.join(SAMPLING_MODES)}")
    if count < 1:
        raise ValueError(f"a size of {count} is not positive")
    i, span = np.arange(count, dtype=np.float64), np.asarray(span, np.float64)[..., None]
    if mode == "DEFAULT":
        positions = i * (span + 1) / count
    elif mode == "OFFSET_CORNERS":
        positions = (i + 0.5) * np.maximum(span, 1) / count
    elif mode == "UNALIGN_CORNERS":
        positions = (i + 0.5) * (span + 1) / count - 0.5
    elif mode == "ALIGN_CORNERS" and count == 1:
        positions = span / 2
    else:
        positions = i * span / max(count - 1, 1)
    return np.clip(positions, 0, span)


def _linear(x: Any, axis: int, mode: str, count: int) -> Any:
    """Samples along an axis, each between its two neighbours."""
    positions = grid(mode, x.shape[axis] - 1, count)
    shape = (-1,) + (1,) * (x.ndim - 1 - axis % x.ndim)
    low = np.floor(positions).astype(np.intp)
    fraction = (positions - low).astype(x.dtype if x.dtype.kind == "f" else np.float64)
    fraction = fraction.reshape(shape)
    before = np.take(x, low, axis)
    after = np.take(x, np.minimum(low + 1, x.shape[axis] - 1), axis)
    # A neighbour without weight does not count, even an infinite one.
    return np.where(fraction == 0, before, before * (1 - fraction) + after * fraction)


def _nearest(x: Any, axis: int, mode: str, count: int) -> Any:
    """Samples along an axis, each its nearest neighbour's; half-way, the one after."""
    positions = grid(mode, x.shape[axis] - 1, count)
    return np.take(x, np.floor(positions + 0.5).astype(np.intp), axis)


@register("resize_bilinear")
def resize_bilinear(
    x: Any,
    target_size_height: int = 1,
    target_size_width: int = 1,
    sampling_mode: str = "DEFAULT",
) -> Any:
    """`x [..., H, W]` at another size, by linear interpolation along both axes.

    Raises:
        ValueError: an unknown sampling_mode.
    """
    x = _linear(x, -2, sampling_mode, int(target_size_height))
    return _linear(x, -1, sampling_mode, int(target_size_width))


@register("resize_nearest_neighbor", moves=True)
def resize_nearest_neighbor(x: Any, target_size_height: int, target_size_width: int) -> Any:
    """`x [..., H, W]` at another size: `y[i] = x[floor((i + 1/2) Xin / Xout)]` along both axes.

    That is TensorFlow's ResizeNearestNeighbor with half_pixel_centers, which is converted to it.
    """
    x = _nearest(x, -2, "UNALIGN_CORNERS", int(target_size_height))
    return _nearest(x, -1, "UNALIGN_CORNERS", int(target_size_width))


@register("resize", opset="iOS17")
def resize(
    x: Any,
    shape: Any,
    resized_dims: int,
    interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT",
) -> Any:
    """`x` with its last `resized_dims` axes as long as the last of `shape`; 0 leaves an axis be.

    The nearest neighbour's DEFAULT is `resize_nearest_neighbor`.

    Raises:
        ValueError: an unknown mode, more resized_dims than shape has, a shape longer than x's.
    """
    x, sizes, resized = np.asarray(x), np.atleast_1d(shape), int(resized_dims)
    if not 0 <= resized <= len(sizes) <= x.ndim:
        raise ValueError(f"{resized} axes of shape {sizes.tolist()} do not fit rank {x.ndim}")
    if interpolation_mode not in ("LINEAR", "NEAREST_NEIGHBOR"):
        raise ValueError(f"unknown interpolation_mode {interpolation_mode!r}")
    linear = interpolation_mode == "LINEAR"
    centred = not linear and sampling_mode == "DEFAULT"
    mode = "UNALIGN_CORNERS" if centred else sampling_mode
    for axis in range(-resized, 0):
        count = int(sizes[axis]) or x.shape[axis]
        x = (_linear if linear else _nearest)(x, axis, mode, count)
    return x


@register("upsample_nearest_neighbor", moves=True)
def upsample_nearest_neighbor(
    x: Any, scale_factor_height: float = 1, scale_factor_width: float = 1
) -> Any:
    """`x [..., H, W]` scaled: `y[i] = x[floor(i Xin / Xout)]` along both axes."""
    for axis, factor in ((-2, scale_factor_height), (-1, scale_factor_width)):
        size, count = x.shape[axis], _scaled(x.shape[axis], factor)
        x = np.take(x, np.arange(count) * size // count, axis)
    return x


@register("upsample_bilinear")
def upsample_bilinear(
    x: Any,
    scale_factor_height: float = 1,
    scale_factor_width: float = 1,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Any:
    """`x [..., H, W]` scaled, by linear interpolation; the factors are those of the sizes.

    Raises:
        ValueError: both align_corners and half_pixel_centers.
    """
    centred = not align_corners if half_pixel_centers is None else half_pixel_centers
    if align_corners and centred:
        raise ValueError("align_corners and half_pixel_centers exclude each other")
    mode = "STRICT_ALIGN_CORNERS" if align_corners else "DEFAULT"
    mode = "UNALIGN_CORNERS" if centred else mode
    x = _linear(x, -2, mode, _scaled(x.shape[-2], scale_factor_height))
    return _linear(x, -1, mode, _scaled(x.shape[-1], scale_factor_width))


def _scaled(size: int, factor: float) -> int:
    """Floor of the product in float32, the type of the factor: so the output's shape is declared.

    Raises:
        ValueError: nothing is left.
    """
    count = int(np.floor(np.float32(size) * np.float32(factor)))
    if count < 1:
        raise ValueError(f"a factor of {factor} leaves nothing of {size} elements")
    return count


@register("crop", moves=True)
def crop(x: Any, crop_height: Any, crop_width: Any) -> Any:
    """`x [..., H, W]` without so many rows before and after, and columns likewise.

    Raises:
        ValueError: negative numbers, or more than there are.
    """
    (top, bottom), (left, right) = ints(crop_height, 2, 0), ints(crop_width, 2, 0)
    height, width = x.shape[-2:]
    if min(top, bottom, left, right) < 0 or top + bottom > height or left + right > width:
        raise ValueError(
            f"{height} rows and {width} columns cannot lose {(top, bottom)} and {(left, right)}"
        )
    return x[..., top : height - bottom, left : width - right]
