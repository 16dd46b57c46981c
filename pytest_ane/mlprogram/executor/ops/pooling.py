"""Pooling over windows; each kind separates into one pass for each spatial axis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.spatial import ints, padding


class _Axis(NamedTuple):
    """Windows along one axis: so many positions of a kernel, the first `pad[0]` before the axis."""

    size: int
    kernel: int
    stride: int
    pad: tuple[int, int]
    positions: int

    def ends(self, before: int = 0, after: int = 0) -> tuple[Any, Any]:
        """Where windows begin and end on the axis and this much padding: `[positions]` each."""
        starts = np.arange(self.positions) * self.stride - self.pad[0]
        return np.maximum(starts, -before), np.minimum(starts + self.kernel, self.size + after)

    def elements(self, before: int = 0, after: int = 0) -> Any:
        """How many each window holds of the axis and of this much padding: `[positions]`."""
        starts, ends = self.ends(before, after)
        if (ends <= starts).any():
            raise ValueError(
                f"a window of {self.kernel} lies outside {self.size} elements padded by {self.pad}"
            )
        return ends - starts


@register("max_pool")
def max_pool(x: Any, **windows: Any) -> Any:
    """The largest of each window of `x [N, C, *D]`; padding never is."""
    axes = _axes(x, **windows)
    for axis in axes:
        axis.elements()
    return _pool(x, axes, np.maximum, -np.inf)


@register("l2_pool")
def l2_pool(x: Any, **windows: Any) -> Any:
    """The root of each window's sum of squares, over `x [N, C, *D]`."""
    return np.sqrt(_pool(np.square(x), _axes(x, **windows), np.add, 0))


@register("avg_pool")
def avg_pool(x: Any, exclude_padding_from_average: bool = False, **windows: Any) -> Any:
    """The mean of each window of `x [N, C, *D]`.

    Padding counts as zeros, unless it is excluded; what `ceil_mode` lets a window reach over the
    padding never counts.
    """
    axes = _axes(x, **windows)
    y = _pool(x, axes, np.add, 0)
    for i, axis in enumerate(axes, start=2):
        elements = axis.elements(*((0, 0) if exclude_padding_from_average else axis.pad))
        y = y / elements.astype(y.dtype).reshape((-1,) + (1,) * (y.ndim - 1 - i))
    return y


def _axes(
    x: Any, kernel_sizes: Any, pad_type: str, strides: Any = None, pad: Any = None,
    ceil_mode: bool = False,
) -> list[_Axis]:  # fmt: skip
    """The windows that a pooling operation's parameters describe, by spatial axis."""
    spatial = x.ndim - 2
    kernel = ints(kernel_sizes, spatial, 1)
    strides = ints(strides, spatial, 1)
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides, (1,) * spatial)
    return [
        _Axis(n, k, s, p, _count(n, k, s, p, ceil_mode))
        for n, k, s, p in zip(x.shape[2:], kernel, strides, pads, strict=True)
    ]


def _count(size: int, kernel: int, stride: int, pad: tuple[int, int], ceil_mode: bool) -> int:
    """Windows along an axis; of those `ceil_mode` adds, none that starts in the padding after."""
    room = size + sum(pad) - kernel
    if room < 0:
        raise ValueError(f"a window of {kernel} does not fit {size} elements padded by {pad}")
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - 1 if sum(pad) and (count - 1) * stride >= size + pad[0] else count


def _pool(x: Any, axes: list[_Axis], combine: np.ufunc, neutral: float) -> Any:
    for i, axis in enumerate(axes, start=2):
        # Windows as pairs of ends; those outside the axis hold the neutral element after it.
        starts, ends = axis.ends()
        pairs = np.stack([starts, ends], 1)
        pairs[ends <= starts] = axis.size
        beyond = np.full((*x.shape[:i], 1, *x.shape[i + 1 :]), neutral, x.dtype)
        padded = np.concatenate([x, beyond], axis=i)
        windows: Any = (slice(None),) * i + (slice(None, None, 2),)
        x = combine.reduceat(padded, pairs.reshape(-1), axis=i)[windows]
    return x
