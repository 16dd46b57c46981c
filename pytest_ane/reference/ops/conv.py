"""Convolution; kernels of one position are matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pytest_ane.reference.registry import register
from pytest_ane.reference.weights import StreamedWeight


@register("conv")
def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    strides: Any = None,
    pad_type: str = "valid",
    pad: Any = None,
    dilations: Any = None,
    groups: int = 1,
) -> Any:
    """Cross-correlation of `x [N, C, *D]` with `weight [O, C / groups, *K]`, plus bias."""
    if isinstance(weight, StreamedWeight) and not (groups == 1 and set(weight.shape[2:]) == {1}):
        weight = np.asarray(weight)
    spatial = x.ndim - 2
    strides = _ints(strides, spatial, 1)
    dilations = _ints(dilations, spatial, 1)
    kernel = weight.shape[2:]
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides, dilations)
    if any(p != (0, 0) for p in pads):
        x = np.pad(x, [(0, 0), (0, 0), *pads])
    if groups == 1 and set(kernel) == {1} and set(strides) == {1}:
        y = _pointwise(x, weight)
    else:
        y = _windows(x, weight, strides, dilations, groups)
    return y if bias is None else y + np.reshape(bias, (1, -1) + (1,) * spatial)


def _pointwise(x: Any, weight: Any) -> Any:
    """`[O, C] [N, C, positions]`: no window is built and nothing is copied."""
    columns = x.reshape(x.shape[0], x.shape[1], -1)
    if isinstance(weight, StreamedWeight):
        y = weight.product(columns)
    else:
        y = np.matmul(weight.reshape(weight.shape[0], -1), columns)
    return y.reshape(x.shape[0], weight.shape[0], *x.shape[2:])


def _windows(
    x: Any, weight: Any, strides: tuple[int, ...], dilations: tuple[int, ...], groups: int
) -> Any:
    """Windows of the input against the kernel, one matrix product for each group."""
    spatial = len(strides)
    kernel = weight.shape[2:]
    axes: Any = tuple(range(2, 2 + spatial))  # numpy's stubs know one axis only.
    extents = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    view = sliding_window_view(x, extents, axis=axes)
    steps = (1, 1, *strides, *dilations)
    view = view[tuple(slice(None, None, step) for step in steps)]
    batch, channels, outputs = x.shape[0], x.shape[1] // groups, weight.shape[0] // groups
    positions = view.shape[2 : 2 + spatial]
    # [N, G, C/G, *P, *K] against [G, O/G, C/G, *K]
    view = view.reshape(batch, groups, channels, *positions, *kernel)
    order = (0, 1, *range(3, 3 + spatial), 2, *range(3 + spatial, 3 + 2 * spatial))
    columns = view.transpose(order).reshape(batch, groups, -1, channels * int(np.prod(kernel)))
    matrix = weight.reshape(groups, outputs, -1)
    y = np.matmul(matrix, np.swapaxes(columns, -1, -2))
    return y.reshape(batch, groups * outputs, *positions)


def padding(
    pad_type: str,
    pad: Any,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> list[tuple[int, int]]:
    """Zeros before and after each spatial axis.

    `same` keeps ceil(size / stride) positions, the odd zero after (`same_lower`: before).

    Raises:
        ValueError: an unknown kind of padding.
    """
    if pad_type == "valid":
        return [(0, 0)] * len(kernel)
    if pad_type == "custom":
        values = _ints(pad, 2 * len(kernel), 0)
        return list(zip(values[0::2], values[1::2], strict=True))
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"unknown pad_type {pad_type!r}")
    pads = []
    for n, k, s, d in zip(size, kernel, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if pad_type == "same" else (more, less))
    return pads


def _ints(values: Any, count: int, default: int) -> tuple[int, ...]:
    return (default,) * count if values is None else tuple(int(v) for v in np.atleast_1d(values))
