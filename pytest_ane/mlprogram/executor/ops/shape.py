"""Operations that change a tensor's shape or type and leave its values alone.

`space_to_depth` and its like move blocks of space into channels or batches. An image (n, C, H, W)
divides into blocks of b_h by b_w positions. With space as (H, b_h, W, b_w), each is a transpose;
they differ in the order of what is merged: `space_to_depth` merges channels as (b_h, b_w, C), as
TensorFlow does, `pixel_unshuffle` as (C, b_h, b_w), as PyTorch does, and `space_to_batch` merges
batches as (b_h, b_w, n).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register, register_all
from pytest_ane.mlprogram.executor.ops.spatial import integers

_MOVES: dict[str, Any] = {
    "identity": lambda x: x,
    "transpose": lambda x, perm: np.transpose(x, integers(perm)),
    # At these places of the result.
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(integers(axes))),
    "shape": lambda x: np.array(np.shape(x), dtype=np.int32),
}
register_all(_MOVES, _MOVES)


@register("reshape", moves=True)
def reshape(x: Any, shape: Any) -> Any:
    """`x` in another shape; 0 keeps the axis at its place, -1 takes what is left."""
    target = integers(shape)
    if 0 in target and len(target) != np.ndim(x):
        raise ValueError(f"a shape with 0, {target}, must have the rank of x, {np.ndim(x)}")
    return _reshaped(x, target)


@register("reshape", opset="iOS17", moves=True)
def reshape_from_the_right(x: Any, shape: Any) -> Any:
    """`x` in another shape; -1 takes what is left.

    0 keeps the axis that is as far from the last one, and is 1 where x has no such axis: (2, 50) to
    [1, 0, -1, 0] gives (1, 1, 2, 50).
    """
    return _reshaped(x, integers(shape))


def _reshaped(x: Any, target: list[int]) -> Any:
    """`x` in a shape whose zeros stand for the axes as far from the last one, or else for 1."""
    x = np.asarray(x)
    if 0 in target:
        aligned = ([1] * len(target) + list(x.shape))[x.ndim :]
        target = [d or n for d, n in zip(target, aligned, strict=True)]
    return x.reshape(target)


@register("reshape_like", opset="iOS16", moves=True)
def reshape_like(x: Any, ref_tensors: Any, begins: Any, ends: Any, end_masks: Any) -> Any:
    """`x` in a shape put together from others: `ref_tensors[i].shape[begins[i]:ends[i]]`.

    Where `end_masks[i]` is true, `ends[i]` is ignored and all axes to the last are taken.
    """
    parts = zip(_tuple(ref_tensors), _tuple(begins), _tuple(ends), _tuple(end_masks), strict=True)
    target: list[int] = []
    for reference, begin, end, to_last in parts:
        target += np.shape(reference)[int(begin) : None if to_last else int(end)]
    return np.reshape(x, target)


def _tuple(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


@register("flatten2d", moves=True)
def flatten2d(x: Any, axis: int = 1) -> Any:
    """`x` as a matrix: the axes before `axis` by the axes from it on."""
    before, after = np.shape(x)[:axis], np.shape(x)[axis:]
    return np.reshape(x, (int(np.prod(before)), int(np.prod(after))))


@register("squeeze", moves=True)
def squeeze(x: Any, axes: Any = None) -> Any:
    """`x` without its axes of length 1, or those among `axes`; longer ones stay, as in PyTorch."""
    lengths = np.shape(x)
    chosen = range(len(lengths)) if axes is None else integers(axes)
    dropped = {range(len(lengths))[a] for a in chosen if lengths[a] == 1}
    return np.reshape(x, [n for i, n in enumerate(lengths) if i not in dropped])


@register("cast")
def cast(x: Any, dtype: str) -> Any:
    """Values in another type.

    Floats are cut off towards zero; those an integer type cannot hold give its nearest end, and NaN
    gives 0, as the ARM instructions have it on every machine here. Integers wrap around.
    """
    x = np.asarray(x)
    fractional = np.issubdtype(x.dtype, np.inexact)
    if dtype in ("fp16", "fp32", "fp64"):
        # The result's type rounds; wider floats stay what they are.
        wide = np.float64 if dtype == "fp64" else np.float32
        return x.astype(np.promote_types(x.dtype, wide) if fractional else wide, copy=False)
    if dtype == "bool":
        return x.astype(np.bool_)
    if fractional:
        ends = np.iinfo(dtype)
        x = np.clip(np.nan_to_num(x.astype(np.float64)), ends.min, ends.max)
    return x.astype(dtype)


def _split_space(x: Any, height: int, width: int) -> Any:
    """(n, C, H, W) as (n, C, H / height, height, W / width, width)."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // height, height, w // width, width)


def _merge_space(x: Any) -> Any:
    n, c, rows, height, columns, width = x.shape
    return x.reshape(n, c, rows * height, columns * width)


def _pairs(values: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    (top, bottom), (left, right) = np.asarray(values, np.int64).reshape(2, 2).tolist()
    if min(top, bottom, left, right) < 0:
        raise ValueError(f"{values} has negative amounts")
    return (top, bottom), (left, right)


def _deepened(x: Any, block: int, order: tuple[int, ...]) -> Any:
    moved = _split_space(x, int(block), int(block)).transpose(order)
    return moved.reshape(len(x), -1 if x.size else x.shape[1] * int(block) ** 2, *moved.shape[4:])


def _widened(x: Any, block: int, depth_first: bool) -> Any:
    b, (n, c, h, w) = int(block), x.shape
    channels = c // (b * b)
    if depth_first:
        return _merge_space(x.reshape(n, b, b, channels, h, w).transpose(0, 3, 4, 1, 5, 2))
    return _merge_space(x.reshape(n, channels, b, b, h, w).transpose(0, 1, 4, 2, 5, 3))


_BLOCKS: dict[str, Any] = {
    # (n, C, H, W) to (n, b * b * C, H / b, W / b), and back.
    "space_to_depth": lambda x, block_size: _deepened(x, block_size, (0, 3, 5, 1, 2, 4)),
    "depth_to_space": lambda x, block_size: _widened(x, block_size, True),
    # (n, C, H, W) to (n, C * f * f, H / f, W / f), and back.
    "pixel_shuffle": lambda x, upscale_factor: _widened(x, upscale_factor, False),
}
register_all(_BLOCKS, _BLOCKS)


@register("pixel_unshuffle", opset="iOS16", moves=True)
def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """Undoes `pixel_shuffle`."""
    return _deepened(x, downscale_factor, (0, 1, 3, 5, 2, 4))


@register("space_to_batch", moves=True)
def space_to_batch(x: Any, block_shape: Any, paddings: Any) -> Any:
    """(n, C, H, W), padded with zeros, to (b_h * b_w * n, C, H / b_h, W / b_w)."""
    height, width = integers(block_shape)
    split = _split_space(np.pad(x, ((0, 0), (0, 0), *_pairs(paddings))), height, width)
    n, c, rows, _, columns, _ = split.shape
    return split.transpose(3, 5, 0, 1, 2, 4).reshape(height * width * n, c, rows, columns)


@register("batch_to_space", moves=True)
def batch_to_space(x: Any, block_shape: Any, crops: Any) -> Any:
    """(b_h * b_w * n, C, H, W) to (n, C, H * b_h, W * b_w), cropped; undoes `space_to_batch`."""
    height, width = integers(block_shape)
    (top, bottom), (left, right) = _pairs(crops)
    n, c, h, w = x.shape
    split = x.reshape(height, width, n // (height * width), c, h, w)
    image = _merge_space(split.transpose(2, 3, 4, 0, 5, 1))
    rows, columns = image.shape[2:]
    if top + bottom > rows or left + right > columns:
        raise ValueError(f"crops {crops} exceed the image of {rows} by {columns}")
    return image[:, :, top : rows - bottom, left : columns - right]
