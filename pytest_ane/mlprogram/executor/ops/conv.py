"""Windows over spatial axes: convolutions, and pooling.

A convolution is a matrix product where the kernel is one element, and torch's elsewhere; each kind
of pooling separates into one pass for each axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.spatial import halves, ints, padding
from pytest_ane.mlprogram.executor.weights import StreamedWeight


@register("conv")
def conv(
    x: Any, weight: Any, bias: Any = None, strides: Any = None, pad_type: str = "valid",
    pad: Any = None, dilations: Any = None, groups: int = 1,
) -> Any:  # fmt: skip
    """Cross-correlation of `x [N, C, *D]` with `weight [O, C / groups, *K]`, plus bias."""
    spatial, groups = x.ndim - 2, int(groups)
    strides, dilations = ints(strides, spatial, 1), ints(dilations, spatial, 1)
    kernel = weight.shape[2:]
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides, dilations)
    if any(map(any, pads)):
        x = np.pad(x, [(0, 0), (0, 0), *pads])
    if set(kernel) <= {1}:
        return add_bias(_pointwise(x, weight, strides, groups), bias)
    y = _by_torch("conv", x, weight, stride=strides, dilation=dilations, groups=groups)
    return add_bias(y, bias)


def add_bias(y: Any, bias: Any) -> Any:
    """`y [N, O, *D]` plus `bias [O]`, where there is one."""
    return y if bias is None else y + np.reshape(bias, (1, -1) + (1,) * (y.ndim - 2))


def _pointwise(x: Any, weight: Any, strides: tuple[int, ...], groups: int) -> Any:
    """A kernel of one element: a matrix product of the channels, at every position."""
    if set(strides) != {1}:
        strided: Any = (..., *(slice(None, None, stride) for stride in strides))
        x = x[strided]
    size = x.shape[2:]
    if isinstance(weight, StreamedWeight) and groups == 1:
        y = weight.product(x.reshape(*x.shape[:2], math.prod(size)))
    else:
        columns = x.reshape(len(x), groups, weight.shape[1], math.prod(size))
        y = np.matmul(np.asarray(weight).reshape(groups, -1, weight.shape[1]), columns)
    return y.reshape(len(x), weight.shape[0], *size)


def _by_torch(name: str, x: Any, weight: Any, **options: Any) -> Any:
    """One of torch's convolutions; programs without one are spared the seconds of its import."""
    import torch
    from torch.nn import functional

    compute = getattr(functional, f"{name}{x.ndim - 2}d")
    arrays = [np.asarray(array) for array in (x, weight)]  # Of a weight in parts all of it.
    tensors = (torch.from_numpy(np.array(array, np.result_type(*arrays))) for array in arrays)
    with torch.inference_mode():
        return compute(*tensors, **options).numpy()


@register("conv_transpose")
def conv_transpose(
    x: Any, weight: Any, bias: Any = None, pad: Any = None, output_shape: Any = None,
    pad_type: str = "valid", strides: Any = None, dilations: Any = None, groups: int = 1,
) -> Any:  # fmt: skip
    """The transpose of `conv` as a linear map, of `x [N, C, *D]` by `weight [C, O / groups, *K]`.

    `pad` takes elements off the whole output; `output_shape` determines its end, with zeros where
    no kernel reaches. `same` gives `D stride` elements, or those of output_shape, from the middle.
    """
    spatial, groups = x.ndim - 2, int(groups)
    strides = ints(strides, spatial, 1)
    outputs = weight.shape[1] * groups
    target = None if output_shape is None else ints(output_shape, 2 + spatial, 0)
    if target is not None and target[:2] != (len(x), outputs):
        raise ValueError(f"output_shape {list(target)} does not begin with {[len(x), outputs]}")
    # All that kernels reach: `(D - 1) stride + (K - 1) dilation + 1` elements along each axis.
    whole = _by_torch(
        "conv_transpose", x, weight, stride=strides, groups=groups,
        dilation=ints(dilations, spatial, 1),
    )  # fmt: skip
    reach = tuple(whole.shape[2:])
    if pad_type in ("valid", "custom"):
        pads = ints(pad if pad_type == "custom" else None, 2 * spatial, 0)
        begins = pads[0::2]
        sizes = [n - sum(both) for n, *both in zip(reach, begins, pads[1::2], strict=True)]
    else:
        sizes = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    sizes = sizes if target is None else list(target[2:])
    if pad_type not in ("valid", "custom"):
        spare = (max(n - size, 0) for n, size in zip(reach, sizes, strict=True))
        begins = tuple(halves(pad_type, n)[0] for n in spare)
    return add_bias(_cut(whole, begins, sizes), bias)


def _cut(whole: Any, begins: Sequence[int], sizes: Sequence[int]) -> Any:
    at = (slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
    place = (..., *at)
    inside = whole[place]
    short = [(0, size - n) for size, n in zip(sizes, inside.shape[2:], strict=True)]
    return np.pad(inside, [(0, 0), (0, 0), *short]) if any(map(any, short)) else inside


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
