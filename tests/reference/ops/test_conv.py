"""Convolution: sums written out, and torch's own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_ane.reference import eval_op
from pytest_ane.reference.ops.conv import padding
from tests.reference.ops.oracle import close, f32, noise, same


def test_one_dimension_written_out() -> None:
    x, weight = f32([[[1, 2, 3, 4]]]), f32([[[1, 10]]])
    same("conv", [[[21, 32, 43]]], x=x, weight=weight)
    same("conv", [[[21, 43]]], x=x, weight=weight, strides=[2])
    same("conv", [[[31, 42]]], x=x, weight=weight, dilations=[2])
    same("conv", [[[10, 21, 32, 43, 4]]], x=x, weight=weight, pad_type="custom", pad=[1, 1])
    same("conv", [[[21, 32, 43, 4]]], x=x, weight=weight, pad_type="same")
    same("conv", [[[10, 21, 32, 43]]], x=x, weight=weight, pad_type="same_lower")
    same("conv", [[[22, 33, 44]]], x=x, weight=weight, bias=f32([1]))


def test_custom_padding_defaults_to_none() -> None:
    same("conv", [[[3]]], x=f32([[[1, 2]]]), weight=f32([[[1, 1]]]), pad_type="custom")


def test_groups_written_out() -> None:
    """Each half of the channels has its own kernel, which sees no other channel."""
    x = f32([[[1], [2], [3], [4]]])
    weight = f32([[[1], [10]], [[100], [1000]]])
    same("conv", [[[21], [4300]]], x=x, weight=weight, groups=2)


CASES = [
    (spatial, groups, stride, dilation, pad)
    for spatial, groups, stride, dilation, pad in itertools.product(
        (1, 2, 3), (1, 2, 4), (1, 2), (1, 2), (0, 1)
    )
]


@pytest.mark.parametrize(("spatial", "groups", "stride", "dilation", "pad"), CASES)
def test_as_torch(spatial: int, groups: int, stride: int, dilation: int, pad: int) -> None:
    x = noise(2, 4, *(5, 6, 7)[:spatial])
    weight = noise(8, 4 // groups, *(2, 3, 2)[:spatial], seed=1)
    bias = noise(8, seed=2)
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    expected = function(*map(torch.from_numpy, (x, weight, bias)), stride=stride,
                        dilation=dilation, padding=pad, groups=groups)  # fmt: skip
    close("conv", expected, x=x, weight=weight, bias=bias, groups=groups, pad_type="custom",
          pad=[pad, pad] * spatial, strides=[stride] * spatial,
          dilations=[dilation] * spatial)  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 8, 1, 5), (1, 8, 5, 1), (2, 8, 3, 4), (1, 8, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_of_one_position(shape: tuple[int, ...], groups: int) -> None:
    x, weight = noise(*shape), noise(6, 8 // groups, *[1] * (len(shape) - 2), seed=1)
    function = F.conv1d if len(shape) == 3 else F.conv2d
    expected = function(torch.from_numpy(x), torch.from_numpy(weight), groups=groups)
    close("conv", expected, x=x, weight=weight, groups=groups)


def test_a_transposed_input() -> None:
    """Not contiguous, as transposes leave it."""
    x = noise(1, 5, 8).transpose(0, 2, 1)
    weight = noise(6, 8, 1, seed=1)
    expected = F.conv1d(torch.from_numpy(x.copy()), torch.from_numpy(weight))
    close("conv", expected, x=x, weight=weight)


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))
def test_same_keeps_one_output_for_every_stride(
    size: int, kernel: int, stride: int, dilation: int
) -> None:
    for kind in ("same", "same_lower"):
        result = eval_op("conv", x=noise(1, 1, size), weight=noise(1, 1, kernel), strides=[stride],
                         dilations=[dilation], pad_type=kind)  # fmt: skip
        assert result.shape[2] == -(-size // stride)


def test_padding() -> None:
    def pads(kind: str, pad: Any = None) -> list[tuple[int, int]]:
        return padding(kind, pad, (5,), (4,), (1,), (1,))

    assert pads("valid") == [(0, 0)]
    assert pads("same") == [(1, 2)]
    assert pads("same_lower") == [(2, 1)]
    assert pads("custom", np.array([3, 4])) == [(3, 4)]
    with pytest.raises(ValueError, match="unknown pad_type 'full'"):
        pads("full")


def test_nan_spreads_under_its_window_only() -> None:
    x = f32([[[np.nan, 1, 1, 1]]])
    same("conv", [[[np.nan, 2, 2]]], x=x, weight=f32([[[1, 1]]]))
