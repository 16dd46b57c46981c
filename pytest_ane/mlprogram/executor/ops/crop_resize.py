"""Boxes cut out of images and resized."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.resizing import grid
from pytest_ane.mlprogram.executor.ops.sampling import bilinear
from pytest_ane.mlprogram.executor.registry import register

_ORDERS = {"HEIGHT_FIRST": [0, 1, 2, 3], "WIDTH_FIRST": [1, 0, 3, 2]}


@register("crop_resize")
def crop_resize_roi(x: Any, roi: Any, **options: Any) -> Any:
    """Boxes of `x [B, C, H, W]`, bilinearly resized to `[h, w]`; pad_value beyond the image.

    `roi [N, 1, 4, 1, 1]` takes every box from every image, `[N, B, C, h, w]`; with the image's
    number before the four, `[N, 1, 5, 1, 1]`, each from its own: `[N, 1, C, h, w]`. `options` are
    the other parameters of `crop_resize`.

    Raises:
        ValueError: an unknown mode, operands of another shape, an image that there is not.
    """
    roi = np.asarray(roi)
    if roi.ndim != 5 or roi.shape[1] != 1 or roi.shape[2] not in (4, 5) or roi.shape[3:] != (1, 1):
        raise ValueError(f"roi {roi.shape} is neither [N, 1, 4, 1, 1] nor [N, 1, 5, 1, 1]")
    rows = roi.reshape(len(roi), -1)
    own = rows.shape[1] == 5
    images = rows[:, 0] if own else np.tile(np.arange(len(x)), len(rows))
    boxes = rows[:, 1:] if own else np.repeat(rows, len(x), axis=0)
    patches = crop_resize(x, boxes, images, **options)
    return patches.reshape(len(roi), 1 if own else len(x), *patches.shape[1:])


@register("crop_resize", opset="iOS17")
def crop_resize(
    x: Any,
    boxes: Any,
    box_indices: Any = None,
    target_height: int = 1,
    target_width: int = 1,
    normalized_coordinates: bool = False,
    spatial_scale: float = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST",
    sampling_mode: str = "DEFAULT",
    pad_value: Any = 0.0,
) -> Any:
    """`boxes [N, 4]` of `x [B, C, H, W]`, each from the image that box_indices name.

    The result is `[N, C, h, w]`, bilinearly resized; pad_value beyond the image.

    Raises:
        ValueError: an unknown mode, operands of another shape, an image that there is not.
    """
    boxes = np.asarray(boxes).astype(np.float64)
    images = np.arange(len(boxes)) if box_indices is None else np.asarray(box_indices).astype(int)
    if x.ndim != 4 or boxes.ndim != 2 or boxes.shape[1] != 4 or images.shape != (len(boxes),):
        raise ValueError(f"boxes {boxes.shape} of images {images.shape} do not fit x {x.shape}")
    if ((images < 0) | (images >= len(x))).any():
        raise ValueError(f"box_indices {images.tolist()} exceed the {len(x)} images of x")
    starts, ends = _corners(boxes, box_coordinate_mode)
    edges = np.array(x.shape[2:]) - 1
    scale = spatial_scale * (edges if normalized_coordinates else np.ones(2))
    h, w = (
        _positions(starts[:, i] * scale[i], ends[:, i] * scale[i], sampling_mode, int(count))
        for i, count in enumerate((target_height, target_width))
    )
    patches = bilinear(x, images[:, None, None], h[:, :, None], w[:, None, :])
    inside = ((h >= 0) & (h <= edges[0]))[:, :, None] & ((w >= 0) & (w <= edges[1]))[:, None]
    return np.where(inside[:, None], patches, np.asarray(pad_value).astype(x.dtype))


def _corners(boxes: Any, mode: str) -> tuple[Any, Any]:
    """First and last `[N, 2]`, row and column, of `boxes [N, 4]`."""
    kind, _, order = mode.partition("_")
    if kind == "CENTER":
        order = order.removeprefix("SIZE_")
    if kind not in ("CORNERS", "CENTER") or order not in _ORDERS:
        raise ValueError(f"unknown box_coordinate_mode {mode!r}")
    first, second = boxes[:, _ORDERS[order][:2]], boxes[:, _ORDERS[order][2:]]
    return (first, second) if kind == "CORNERS" else (first - second / 2, first + second / 2)


def _positions(start: Any, end: Any, mode: str, count: int) -> Any:
    """Samples `[N, count]` from start to end, which may come before it."""
    along = np.sign(end - start)[:, None] * grid(mode, np.abs(end - start), count)
    low, high = np.minimum(start, end)[:, None], np.maximum(start, end)[:, None]
    return np.clip(start[:, None] + along, low, high)
