"""Convolution: a matrix product where the kernel is one element, torch's elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
    dtype = np.result_type(x, weight)
    tensors = (torch.from_numpy(np.array(array, dtype)) for array in (x, weight))
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
