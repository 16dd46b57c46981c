"""Transposed convolution: every input element adds a kernel, scaled by it, to the output."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.conv import add_bias, check_channels
from pytest_ane.mlprogram.executor.ops.spatial import extent, halves, ints, under
from pytest_ane.mlprogram.executor.registry import register


@register("conv_transpose")
def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    pad: Any = None,
    output_shape: Any = None,
    pad_type: str = "valid",
    strides: Any = None,
    dilations: Any = None,
    groups: int = 1,
) -> Any:
    """The transpose of `conv` as a linear map, of `x [N, C, *D]` by `weight [C, O / groups, *K]`.

    `pad` takes elements off the whole output; `output_shape` determines its end, with zeros where
    no kernel reaches. `same` gives `D stride` elements, or those of output_shape, from the middle.

    Raises:
        ValueError: channels that do not fit the weight and its groups, an output_shape of another
            rank, batch or number of channels, no output left, padding of an unknown kind.
    """
    spatial, groups = x.ndim - 2, int(groups)
    strides = ints(strides, spatial, 1)
    dilations = ints(dilations, spatial, 1)
    outputs = weight.shape[1] * groups
    check_channels(x, weight.shape[0], outputs, groups)
    whole = _whole(x, weight, strides, dilations, groups)
    target = _target(output_shape, (len(x), outputs), spatial)
    same = tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
    cuts = _cuts(whole.shape[2:], same, target, pad_type, pad)
    return add_bias(_cut(whole, cuts), bias)


def _whole(
    x: Any, weight: Any, strides: tuple[int, ...], dilations: tuple[int, ...], groups: int
) -> Any:
    """All that kernels reach, `(D - 1) stride + (K - 1) dilation + 1` elements along each axis."""
    size, kernel = x.shape[2:], weight.shape[2:]
    reach = [
        (n - 1) * s + extent(k, d)
        for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)
    ]
    outputs = weight.shape[1]
    columns = x.reshape(len(x), groups, x.shape[1] // groups, math.prod(size))
    matrices = weight.reshape(groups, -1, outputs, *kernel).swapaxes(1, 2)  # [G, O/G, C/G, *K]
    y: Any = np.zeros((len(x), groups * outputs, *reach), np.result_type(x, weight))
    for position in product(*map(range, kernel)):
        chosen = (..., *position)
        reached = (..., *under(position, strides, dilations, size))
        added = np.matmul(matrices[chosen], columns)
        y[reached] += added.reshape(len(x), groups * outputs, *size)
    return y


def _target(output_shape: Any, leading: tuple[int, int], spatial: int) -> tuple[int, ...] | None:
    """The spatial part of an output_shape, if there is one."""
    if output_shape is None:
        return None
    shape = ints(output_shape, 2 + spatial, 0)
    if shape[:2] != leading:
        raise ValueError(f"output_shape {list(shape)} does not begin with {list(leading)}")
    return shape[2:]


def _cuts(
    reach: tuple[int, ...],
    same: tuple[int, ...],
    target: tuple[int, ...] | None,
    pad_type: str,
    pad: Any,
) -> list[tuple[int, int]]:
    """Where the output begins and ends within what kernels reach, for each axis."""
    if pad_type in ("valid", "custom"):
        pads = ints(pad if pad_type == "custom" else None, 2 * len(reach), 0)
        begins = pads[0::2]
        ends = tuple(n - after for n, after in zip(reach, pads[1::2], strict=True))
    else:
        sizes = same if target is None else target
        begins = tuple(
            halves(pad_type, max(n - size, 0))[0] for n, size in zip(reach, sizes, strict=True)
        )
        ends = tuple(begin + size for begin, size in zip(begins, sizes, strict=True))
    if target is not None:
        ends = tuple(begin + size for begin, size in zip(begins, target, strict=True))
    if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
        raise ValueError(f"no output is left of {reach} between {begins} and {ends}")
    return list(zip(begins, ends, strict=True))


def _cut(whole: Any, cuts: list[tuple[int, int]]) -> Any:
    """What lies between, and zeros past the end."""
    between = (..., *(slice(begin, end) for begin, end in cuts))
    inside = whole[between]
    short = [end - begin - n for (begin, end), n in zip(cuts, inside.shape[2:], strict=True)]
    if not any(short):
        return inside
    return np.pad(inside, [(0, 0), (0, 0), *((0, n) for n in short)])
