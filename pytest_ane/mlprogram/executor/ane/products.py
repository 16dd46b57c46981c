"""Convolutions 1x1, linear layers and products of matrices, in the accumulator of Q15.16.

Grade: recorded, M4, M5 and M6; see `accumulator`. Larger kernels are of unknown arithmetic: the
hardware transforms some (Winograd), and how it passes over large ones is not known. Weights of
palettes count as fp16 weights, which is inferred from M1 (sbryngelson/ane-guide part-1/03).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor.ane.accumulator import Sums
from pytest_ane.mlprogram.executor.ane.factors import Factors
from pytest_ane.mlprogram.executor.ane.grades import Grade, rule
from pytest_ane.mlprogram.executor.ops.conv import check_channels
from pytest_ane.mlprogram.executor.ops.spatial import ints, padding


@rule(Grade.RECORDED, "conv")
def conv(
    x: Any, weight: Any, bias: Any = None, strides: Any = None, pad_type: str = "valid",
    pad: Any = None, dilations: Any = None, groups: int = 1,
) -> Sums | None:  # fmt: skip
    """`x [N, C, *D]` with `weight [O, C / groups, 1...]`; None for a larger kernel.

    Raises:
        ValueError: channels do not fit the weight and its groups.
    """
    kernel, spatial, groups = weight.shape[2:], x.ndim - 2, int(groups)
    if not set(kernel) <= {1}:
        return None
    check_channels(x, weight.shape[1] * groups, weight.shape[0], groups)
    steps = ints(strides, spatial, 1)
    pads = padding(pad_type, pad, x.shape[2:], kernel, steps, ints(dilations, spatial, 1))
    if any(map(any, pads)):
        x = np.pad(x, [(0, 0), (0, 0), *pads])
    strided: Any = (..., *(slice(None, None, step) for step in steps))
    x = x[strided]
    count, size, width = len(x), x.shape[2:], weight.shape[1]
    positions, rows = math.prod(size), weight.shape[0] // groups
    vectors = x.reshape(count, groups, width, positions).transpose(1, 0, 3, 2)
    vectors = vectors.reshape(groups, count * positions, width)
    total = factors_of(weight, width, groups).sums(vectors, _starts(bias, groups))
    if total is None:
        return None

    def shaped(y: Array) -> Array:
        y = y.reshape(groups, rows, count, positions).transpose(2, 0, 1, 3)
        return y.reshape(count, weight.shape[0], *size)

    return total.map(shaped)


@rule(Grade.RECORDED, "linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Sums | None:
    """`x [.., K]` with `weight [O, K]` and `bias [O]`.

    Raises:
        ValueError: the weight is no matrix, or the bias not of its rows.
    """
    if weight.ndim != 2 or (bias is not None and np.shape(bias) != weight.shape[:1]):
        raise ValueError(f"a weight {weight.shape} and a bias {np.shape(bias)}")
    vectors = x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])
    total = factors_of(weight, weight.shape[1]).sums(vectors, _starts(bias, 1))
    if total is None:
        return None
    return total.map(lambda y: y[0].T.reshape(*x.shape[:-1], weight.shape[0]))


@rule(Grade.RECORDED, "matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Sums | None:
    """`x y` over the last two axes, the others broadcast; either may be transposed first.

    A vector is a row on the left and a column on the right; its axis is then removed again.
    Two transposed activations that gave infinities on M5 (ANEForge issue 115) contradict the rule.
    """
    left, right = matrix(x, transposed=transpose_x), matrix(y, transposed=not transpose_y)
    if left.width != right.width:
        raise ValueError(f"{x.shape} and {y.shape} do not fit")
    # Either side may be the weight: a constant one is prepared, and many rows are summed faster.
    is_left = x is left or (y is not right and left.height > right.height)
    factors, others = (left, right) if is_left else (right, left)
    total = _multiplied(factors, others.matrix)
    if total is None:
        return None

    def shaped(z: Array) -> Array:
        z = z if is_left else np.swapaxes(z, -1, -2)
        z = z if x.ndim > 1 else z[..., 0, :]
        return z if y.ndim > 1 else z[..., 0]

    return total.map(shaped)


def matrix(x: Any, *, transposed: bool) -> Factors:
    """An operand of matmul by its rows `[.., O, K]`, which are its columns if `transposed`."""
    if isinstance(x, Factors):
        return x
    x = np.asarray(x)
    if x.ndim == 1:
        return Factors(x[None], len(x))
    width = x.shape[-2 if transposed else -1]
    return Factors(x, width, math.prod(x.shape[:-2]), bool(transposed))


def _multiplied(factors: Factors, vectors: Array) -> Sums | None:
    """Factors `[.., O, K]` with vectors `[.., P, K]`: `[*batch, O, P]`."""
    own, others = factors.shape[:-2], vectors.shape[:-2]
    batch = np.broadcast_shapes(own, others)
    (positions, width), height = vectors.shape[-2:], factors.height
    if factors.groups == 1:
        total = factors.sums(vectors.reshape(1, math.prod(others) * positions, width))
        parts = (height, math.prod(others), positions)
        return total and total.map(
            lambda y: y.reshape(parts).swapaxes(0, 1).reshape(*batch, height, positions)
        )
    count = math.prod(batch)
    if own != batch:
        factors = matrix(np.broadcast_to(factors.matrix, (*batch, height, width)), transposed=False)
    vectors = np.broadcast_to(vectors, (*batch, positions, width))
    total = factors.sums(vectors.reshape(count, positions, width))
    return total and total.map(lambda y: y.reshape(*batch, height, positions))


def factors_of(weight: Any, width: int, groups: int = 1) -> Factors:
    """A weight `[O, K, 1...]`, prepared unless it is."""
    return weight if isinstance(weight, Factors) else Factors(weight, width, groups)


def _starts(bias: Any, groups: int) -> Any:
    return None if bias is None else np.reshape(np.asarray(bias), (groups, -1))
