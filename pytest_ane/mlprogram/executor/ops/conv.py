"""Convolution: matrix products of the kernels with columns, which hold the input's windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.spatial import extent, halves, ints, padding, steps
from pytest_ane.mlprogram.executor.weights import StreamedWeight

_MANY = 32
"""Channels of a group from which a product for each of the kernel's positions is quick."""
_COLUMNS = 1 << 22
"""Elements of the columns built at a time: windows overlap, so all of them may be far more."""


class _Windows(NamedTuple):
    """Where the kernels lie: `counts` positions along each axis of the padded input."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    counts: tuple[int, ...]
    groups: int

    def under(self, position: tuple[int, ...]) -> tuple[slice, ...]:
        every = zip(position, self.strides, self.dilations, self.counts, strict=True)
        return tuple(steps(k * d, stride, count) for k, stride, d, count in every)


@register("conv")
def conv(
    x: Any, weight: Any, bias: Any = None, strides: Any = None, pad_type: str = "valid",
    pad: Any = None, dilations: Any = None, groups: int = 1,
) -> Any:  # fmt: skip
    """Cross-correlation of `x [N, C, *D]` with `weight [O, C / groups, *K]`, plus bias."""
    spatial, groups = x.ndim - 2, int(groups)
    strides = ints(strides, spatial, 1)
    dilations = ints(dilations, spatial, 1)
    kernel = weight.shape[2:]
    check_channels(x, weight.shape[1] * groups, weight.shape[0], groups)
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides, dilations)
    if any(map(any, pads)):
        x = np.pad(x, [(0, 0), (0, 0), *pads])
    if set(kernel) <= {1}:
        return add_bias(_pointwise(x, weight, strides, groups), bias)
    weight = np.asarray(weight)
    counts = _counts(x.shape[2:], kernel, strides, dilations)
    windows = _Windows(strides, dilations, counts, groups)
    if weight.shape[1] == 1 and groups > 1:
        y = _depthwise(x, weight, windows)
    elif weight.shape[1] >= _MANY and weight[0].size * math.prod(counts) * groups > _COLUMNS:
        y = _shifted(x, weight, windows)
    else:
        y = _columns(x, weight, windows)
    return add_bias(y.reshape(len(x), weight.shape[0], *counts), bias)


def check_channels(x: Any, inputs: int, outputs: int, groups: int) -> None:
    """Raise ValueError where a weight of this many channels and groups does not fit the input."""
    if x.shape[1] != inputs or inputs % groups or outputs % groups:
        raise ValueError(
            f"x has {x.shape[1]} channels; the weight takes {inputs}, gives {outputs}, and "
            f"both are to divide into {groups} groups"
        )


def add_bias(y: Any, bias: Any) -> Any:
    """`y [N, O, *D]` plus `bias [O]`, where there is one."""
    return y if bias is None else y + np.reshape(bias, (1, -1) + (1,) * (y.ndim - 2))


def _counts(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, ...]:
    """The kernel's positions along each axis of a padded input."""
    room = [n - extent(k, d) for n, k, d in zip(size, kernel, dilations, strict=True)]
    if min(room) < 0:
        raise ValueError(
            f"a kernel of {kernel}, dilated by {dilations}, does not fit a padded input of {size}"
        )
    return tuple(r // s + 1 for r, s in zip(room, strides, strict=True))


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
        y = _product(np.asarray(weight), columns)
    return y.reshape(len(x), weight.shape[0], *size)


def _product(weight: Any, columns: Any) -> Any:
    """`[O, K]` and `[N, G, K, P]`: `[N, G, O / G, P]`, a matrix product for each group."""
    groups, rows = columns.shape[1:3]
    return np.matmul(weight.reshape(groups, weight.shape[0] // groups, rows), columns)


def _depthwise(x: Any, weight: Any, windows: _Windows) -> Any:
    """A group for each channel: products of numbers, summed over the kernel's positions."""
    factors = weight.reshape(x.shape[1], -1, *weight.shape[2:], *(1 for _ in windows.counts))
    y = 0
    for position in product(*map(range, weight.shape[2:])):
        chosen = (slice(None), slice(None), *position)  # [C, O / C, 1, ...]
        window = (slice(None), slice(None), None, *windows.under(position))
        y = y + factors[chosen] * x[window]
    return y


def _shifted(x: Any, weight: Any, windows: _Windows) -> Any:
    """Many channels: a matrix product over them for each of the kernel's positions, summed."""
    shape = (len(x), windows.groups, weight.shape[1], math.prod(windows.counts))
    y: Any = 0
    for position in product(*map(range, weight.shape[2:])):
        at: Any = (..., *windows.under(position))
        tap: Any = (slice(None), slice(None), *position)
        window, matrix = x[at].reshape(shape), np.ascontiguousarray(weight[tap])
        y = y + _product(matrix, np.ascontiguousarray(window))
    return y


def _columns(x: Any, weight: Any, windows: _Windows) -> Any:
    """Few channels: columns of some samples, or of some positions of one, at a time."""
    strides, dilations, counts, groups = windows
    size = math.prod(counts) * weight[0].size * groups
    if (some := max(_COLUMNS // max(size, 1), 1)) < len(x):
        parts = [x[start : start + some] for start in range(0, len(x), some)]
        return np.concatenate([_columns(part, weight, windows) for part in parts])
    spatial = len(strides)
    kernel = weight.shape[2:]
    axes: Any = tuple(range(2, 2 + spatial))  # numpy's stubs know one axis only.
    extents = tuple(extent(k, d) for k, d in zip(kernel, dilations, strict=True))
    view = sliding_window_view(x, extents, axis=axes)
    view = view[tuple(slice(None, None, step) for step in (1, 1, *strides, *dilations))]
    # [N, C, *P, *K] to [N, C, *K, *P]: whole rows of the input are copied at a time.
    view = view.transpose(0, 1, *range(2 + spatial, 2 + 2 * spatial), *axes)
    first = 2 + spatial
    rows = weight.shape[1] * math.prod(kernel)
    step = max(_COLUMNS * view.shape[first] // max(view.size, 1), 1)
    products = []
    for start in range(0, view.shape[first], step):
        some = view[(slice(None),) * first + (slice(start, start + step),)]
        columns = some.reshape(len(x), groups, rows, math.prod(some.shape[first:]))
        products.append(_product(weight, columns))
    return np.concatenate(products, axis=-1)


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
    check_channels(x, weight.shape[0], outputs, groups)
    target = None if output_shape is None else ints(output_shape, 2 + spatial, 0)
    if target is not None and target[:2] != (len(x), outputs):
        raise ValueError(f"output_shape {list(target)} does not begin with {[len(x), outputs]}")
    whole = _whole(x, weight, strides, ints(dilations, spatial, 1), groups)
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
    if min(sizes) <= 0:
        raise ValueError(f"no output is left of {reach} from {begins} on, but {sizes}")
    return add_bias(_cut(whole, begins, sizes), bias)


def _whole(
    x: Any, weight: Any, strides: tuple[int, ...], dilations: tuple[int, ...], groups: int
) -> Any:
    """All that kernels reach, `(D - 1) stride + (K - 1) dilation + 1` elements along each axis."""
    import torch  # Few programs have the operation, and the import takes seconds.
    from torch.nn import functional

    compute = getattr(functional, f"conv_transpose{x.ndim - 2}d")
    dtype = np.result_type(x, weight)
    arrays = (torch.from_numpy(np.array(array, dtype)) for array in (x, weight))
    return compute(*arrays, stride=strides, groups=groups, dilation=dilations).numpy()


def _cut(whole: Any, begins: Sequence[int], sizes: Sequence[int]) -> Any:
    """So many elements of each spatial axis from a place on, zeros past the end."""
    at = (slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
    place = (..., *at)
    inside = whole[place]
    short = [(0, size - n) for size, n in zip(sizes, inside.shape[2:], strict=True)]
    return np.pad(inside, [(0, 0), (0, 0), *short]) if any(map(any, short)) else inside
