"""Blocks of space moved into channels or batches, and back.

An image (n, C, H, W) divides into blocks of b_h by b_w positions. With space as (H, b_h, W, b_w),
each operation is a transpose; they differ in the order of what is merged:
`space_to_depth` merges channels as (b_h, b_w, C), as TensorFlow does, `pixel_unshuffle` as
(C, b_h, b_w), as PyTorch does, and `space_to_batch` merges batches as (b_h, b_w, n).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.executor.registry import register


def _divided(n: int, by: int, what: str) -> int:
    if by < 1 or n % by:
        raise ValueError(f"{what} {n} does not divide by {by}")
    return n // by


def _split_space(x: Any, height: int, width: int) -> Any:
    """(n, C, H, W) as (n, C, H / height, height, W / width, width)."""
    n, c, h, w = x.shape
    rows, columns = _divided(h, height, "height"), _divided(w, width, "width")
    return x.reshape(n, c, rows, height, columns, width)


def _merge_space(x: Any) -> Any:
    """The inverse of `_split_space`."""
    n, c, rows, height, columns, width = x.shape
    return x.reshape(n, c, rows * height, columns * width)


def _pairs(values: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    (top, bottom), (left, right) = np.asarray(values, np.int64).reshape(2, 2).tolist()
    if min(top, bottom, left, right) < 0:
        raise ValueError(f"{values} has negative amounts")
    return (top, bottom), (left, right)


@register("space_to_depth", moves=True)
def space_to_depth(x: Any, block_size: int) -> Any:
    """(n, C, H, W) to (n, b * b * C, H / b, W / b).

    Raises:
        ValueError: H or W does not divide by the block size.
    """
    b = int(block_size)
    moved = _split_space(x, b, b).transpose(0, 3, 5, 1, 2, 4)
    n, _, _, c, h, w = moved.shape
    return moved.reshape(n, b * b * c, h, w)


@register("depth_to_space", moves=True)
def depth_to_space(x: Any, block_size: int) -> Any:
    """(n, b * b * C, H, W) to (n, C, H * b, W * b); undoes `space_to_depth`.

    Raises:
        ValueError: the channels do not divide by the block size squared.
    """
    b, (n, c, h, w) = int(block_size), x.shape
    split = x.reshape(n, b, b, _divided(c, b * b, "channels"), h, w)
    return _merge_space(split.transpose(0, 3, 4, 1, 5, 2))


@register("pixel_unshuffle", opset="iOS16", moves=True)
def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """(n, C, H, W) to (n, C * f * f, H / f, W / f), as `torch.nn.PixelUnshuffle`.

    Raises:
        ValueError: H or W does not divide by the factor.
    """
    f = int(downscale_factor)
    moved = _split_space(x, f, f).transpose(0, 1, 3, 5, 2, 4)
    n, c, _, _, h, w = moved.shape
    return moved.reshape(n, c * f * f, h, w)


@register("pixel_shuffle", moves=True)
def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """(n, C * f * f, H, W) to (n, C, H * f, W * f), as `torch.nn.PixelShuffle`.

    Raises:
        ValueError: the channels do not divide by the factor squared.
    """
    f, (n, c, h, w) = int(upscale_factor), x.shape
    split = x.reshape(n, _divided(c, f * f, "channels"), f, f, h, w)
    return _merge_space(split.transpose(0, 1, 4, 2, 5, 3))


@register("space_to_batch", moves=True)
def space_to_batch(x: Any, block_shape: Any, paddings: Any) -> Any:
    """(n, C, H, W), padded with zeros, to (b_h * b_w * n, C, H / b_h, W / b_w).

    Raises:
        ValueError: the padded H or W does not divide by the block, or a padding is negative.
    """
    height, width = integers(block_shape)
    split = _split_space(np.pad(x, ((0, 0), (0, 0), *_pairs(paddings))), height, width)
    n, c, rows, _, columns, _ = split.shape
    moved = split.transpose(3, 5, 0, 1, 2, 4)
    return moved.reshape(height * width * n, c, rows, columns)


@register("batch_to_space", moves=True)
def batch_to_space(x: Any, block_shape: Any, crops: Any) -> Any:
    """(b_h * b_w * n, C, H, W) to (n, C, H * b_h, W * b_w), cropped; undoes `space_to_batch`.

    Raises:
        ValueError: the batch does not divide by the block, or the crops exceed the image.
    """
    height, width = integers(block_shape)
    (top, bottom), (left, right) = _pairs(crops)
    n, c, h, w = x.shape
    split = x.reshape(height, width, _divided(n, height * width, "batch"), c, h, w)
    image = _merge_space(split.transpose(2, 3, 4, 0, 5, 1))
    rows, columns = image.shape[2:]
    if top + bottom > rows or left + right > columns:
        raise ValueError(f"crops {crops} exceed the image of {rows} by {columns}")
    return image[:, :, top : rows - bottom, left : columns - right]
