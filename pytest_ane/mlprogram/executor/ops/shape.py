"""Operations that change a tensor's shape or type and leave its values alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.executor.registry import register


@register("identity", moves=True)
def identity(x: Any) -> Any:
    """`x` unchanged, not copied."""
    return x


@register("reshape", moves=True)
def reshape(x: Any, shape: Any) -> Any:
    """`x` in another shape; 0 keeps the axis at its place, -1 takes what is left.

    Raises:
        ValueError: the shape does not hold x's elements, or has a 0 and not x's rank.
    """
    target = integers(shape)
    if 0 in target and len(target) != np.ndim(x):
        raise ValueError(f"a shape with 0, {target}, must have the rank of x, {np.ndim(x)}")
    return _reshaped(x, target)


@register("reshape", opset="iOS17", moves=True)
def reshape_from_the_right(x: Any, shape: Any) -> Any:
    """`x` in another shape; -1 takes what is left.

    0 keeps the axis that is as far from the last one, and is 1 where x has no such axis: (2, 50) to
    [1, 0, -1, 0] gives (1, 1, 2, 50).

    Raises:
        ValueError: the shape does not hold x's elements.
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

    Raises:
        ValueError: the shape does not hold x's elements, or the tuples differ in length.
    """
    parts = zip(_tuple(ref_tensors), _tuple(begins), _tuple(ends), _tuple(end_masks), strict=True)
    target: list[int] = []
    for reference, begin, end, to_last in parts:
        target += np.shape(reference)[int(begin) : None if to_last else int(end)]
    return np.reshape(x, target)


def _tuple(values: Any) -> tuple[Any, ...]:
    """A list's items; a list of one may come as its item."""
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


@register("flatten2d", moves=True)
def flatten2d(x: Any, axis: int = 1) -> Any:
    """`x` as a matrix: the axes before `axis` by the axes from it on."""
    before, after = np.shape(x)[:axis], np.shape(x)[axis:]
    return np.reshape(x, (int(np.prod(before)), int(np.prod(after))))


@register("transpose", moves=True)
def transpose(x: Any, perm: Any) -> Any:
    """`x` with its axes in the order `perm`."""
    return np.transpose(x, integers(perm))


@register("expand_dims", moves=True)
def expand_dims(x: Any, axes: Any) -> Any:
    """`x` with axes of length 1 inserted, at these places of the result."""
    return np.expand_dims(x, tuple(integers(axes)))


@register("squeeze", moves=True)
def squeeze(x: Any, axes: Any = None) -> Any:
    """`x` without its axes of length 1, or those among `axes`; longer ones stay, as in PyTorch.

    Raises:
        IndexError: an axis is out of bounds.
    """
    lengths = np.shape(x)
    chosen = range(len(lengths)) if axes is None else integers(axes)
    dropped = {range(len(lengths))[a] for a in chosen if lengths[a] == 1}
    return np.reshape(x, [n for i, n in enumerate(lengths) if i not in dropped])


@register("shape", moves=True)
def shape(x: Any) -> Any:
    """The shape of x, `[rank]` as int32."""
    return np.array(np.shape(x), dtype=np.int32)


@register("cast")
def cast(x: Any, dtype: str) -> Any:
    """Values in another type.

    Floats are cut off towards zero; those an integer type cannot hold give its nearest end, and NaN
    gives 0, as the ARM instructions have it on every machine here. Integers wrap around.

    Raises:
        ValueError: the type is unknown.
    """
    x = np.asarray(x)
    fractional = np.issubdtype(x.dtype, np.inexact)
    if dtype in ("fp16", "fp32", "fp64"):
        # The result's type rounds; wider floats stay what they are.
        wide = np.float64 if dtype == "fp64" else np.float32
        return x.astype(np.promote_types(x.dtype, wide) if fractional else wide, copy=False)
    if dtype == "bool":
        return x.astype(np.bool_)
    if dtype not in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        raise ValueError(f"unknown dtype {dtype!r}")
    if fractional:
        ends = np.iinfo(dtype)
        x = np.clip(np.nan_to_num(x.astype(np.float64)), ends.min, ends.max)
    return x.astype(dtype)
