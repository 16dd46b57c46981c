"""Convolutions 1x1, linear layers and products of matrices, in the accumulator of Q15.16.

Grade: recorded, M4, M5 and M6; see `accumulator`. Larger kernels are of unknown arithmetic: the
hardware transforms some (Winograd), and how it passes over large ones is not known. Weights of
palettes count as fp16 weights, which is inferred from M1 (sbryngelson/ane-guide part-1/03).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ane.core.arrays import Array
from pytest_ane.reference.ane.accumulator import Sums, Weight, sums
from pytest_ane.reference.ane.grades import Grade, rule
from pytest_ane.reference.ops.conv import check_channels
from pytest_ane.reference.ops.spatial import ints, padding
from pytest_ane.reference.weights import HalfWeight, StreamedWeight


@dataclass(frozen=True, eq=False)
class Prepared:
    """A constant weight `[O, K, ...]`, which is prepared once where it is held.

    Attributes:
        source: an array, or a weight that is held in fp16 or streamed.
        groups: of its rows.
    """

    source: Any
    groups: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the source."""
        return tuple(self.source.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def factors(self) -> Weight:
        """Rows by group; of a streamed weight they are decoded anew each time."""
        is_streamed = isinstance(self.source, StreamedWeight)
        return (
            self._made() if is_streamed and not isinstance(self.source, HalfWeight) else self._held
        )

    @cached_property
    def _held(self) -> Weight:
        return self._made()

    def _made(self) -> Weight:
        source = self.source
        factors = source.patterns if isinstance(source, HalfWeight) else np.asarray(source)
        return Weight.of(factors.reshape(self.groups, len(factors) // self.groups, -1))


def prepared(weight: Any, groups: int = 1) -> Weight:
    """A weight `[O, K, 1...]` as `[G, O / G, K]`; one that is held in fp16 is not copied."""
    source: Prepared = weight if isinstance(weight, Prepared) else Prepared(weight, groups)
    return source.factors()


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
    total = sums(prepared(weight, groups), vectors, _starts(bias, groups))

    def shaped(y: Array) -> Array:
        y = y.reshape(groups, rows, count, positions).transpose(2, 0, 1, 3)
        return y.reshape(count, weight.shape[0], *size)

    return total.map(shaped)


@rule(Grade.RECORDED, "linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Sums:
    """`x [.., K]` with `weight [O, K]` and `bias [O]`.

    Raises:
        ValueError: the weight is no matrix, or the bias not of its rows.
    """
    if weight.ndim != 2 or (bias is not None and np.shape(bias) != weight.shape[:1]):
        raise ValueError(f"a weight {weight.shape} and a bias {np.shape(bias)}")
    total = sums(
        prepared(weight), x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1]), _starts(bias, 1)
    )
    return total.map(lambda y: y[0].T.reshape(*x.shape[:-1], weight.shape[0]))


@rule(Grade.RECORDED, "matmul")
def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Sums:
    """`x y` over the last two axes, the others broadcast; either may be transposed first.

    A vector is a row on the left and a column on the right; its axis is then removed again.
    Two transposed activations that gave infinities on M5 (ANEForge issue 115) contradict the rule.
    """
    x, y = np.asarray(x), np.asarray(y)
    left = np.atleast_2d(x) if x.ndim == 1 else np.swapaxes(x, -1, -2) if transpose_x else x
    right = y[:, None] if y.ndim == 1 else np.swapaxes(y, -1, -2) if transpose_y else y
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    (rows, width), columns = left.shape[-2:], right.shape[-1]
    if right.shape[-2] != width:
        raise ValueError(f"{x.shape} and {y.shape} do not fit")
    count = math.prod(batch)
    factors = np.broadcast_to(np.swapaxes(right, -1, -2), (*batch, columns, width))
    vectors = np.broadcast_to(left, (*batch, rows, width)).reshape(count, rows, width)
    total = sums(Weight.of(factors.reshape(count, columns, width)), vectors)
    shape = (*batch, *(() if x.ndim == 1 else (rows,)), *(() if y.ndim == 1 else (columns,)))
    return total.map(lambda z: np.swapaxes(z, 1, 2).reshape(shape))


def _starts(bias: Any, groups: int) -> Any:
    return None if bias is None else np.reshape(np.asarray(bias), (groups, -1))
