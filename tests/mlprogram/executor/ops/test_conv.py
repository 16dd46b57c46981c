"""Convolution, its transpose and pooling: windows written out, torch's own, adjoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same


def test_written_out() -> None:
    x, weight = f32([[[1, 2, 3, 4]]]), f32([[[1, 10]]])
    same("conv", [[[21, 32, 43]]], x=x, weight=weight)
    same("conv", [[[21, 43]]], x=x, weight=weight, strides=[2])
    same("conv", [[[31, 42]]], x=x, weight=weight, dilations=[2])
    same("conv", [[[10, 21, 32, 43, 4]]], x=x, weight=weight, pad_type="custom", pad=[1, 1])
    same("conv", [[[21, 32, 43, 4]]], x=x, weight=weight, pad_type="same")
    same("conv", [[[10, 21, 32, 43]]], x=x, weight=weight, pad_type="same_lower")
    same("conv", [[[22, 33, 44]]], x=x, weight=weight, bias=f32([1]))
    same("conv", [[[3]]], x=f32([[[1, 2]]]), weight=f32([[[1, 1]]]), pad_type="custom")
    # Each half of the channels has its own kernel, which sees no other channel.
    x = f32([[[1], [2], [3], [4]]])
    weight = f32([[[1], [10]], [[100], [1000]]])
    same("conv", [[[21], [4300]]], x=x, weight=weight, groups=2)
    x = f32([[[np.nan, 1, 1, 1]]])
    same("conv", [[[np.nan, 2, 2]]], x=x, weight=f32([[[1, 1]]]))
    weight = noise(4, 3, 2, 2)
    assert eval_op("conv", x=noise(0, 3, 5, 5), weight=weight).shape == (0, 4, 4, 4)


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_as_torch(data: st.DataObject) -> None:
    """Kernels of any size, in any number of groups, however the sums are taken."""
    spatial, groups = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 4]))
    axes = st.tuples(*[st.integers(1, 3)] * spatial)
    kernel, strides, dilations = data.draw(axes), data.draw(axes), data.draw(axes)
    pad = data.draw(st.lists(st.integers(0, 2), min_size=2 * spatial, max_size=2 * spatial))
    more = data.draw(axes)
    size = [(k - 1) * d + n for k, d, n in zip(kernel, dilations, more, strict=True)]
    outputs = groups * data.draw(st.integers(1, 3))
    x, weight, bias = noise(2, 4, *size), noise(outputs, 4 // groups, *kernel), noise(outputs)
    padded = F.pad(torch.from_numpy(x), [p for i in range(spatial)[::-1] for p in pad[2 * i :][:2]])
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    expected = function(padded, *map(torch.from_numpy, (weight, bias)), stride=strides,
                        dilation=dilations, groups=groups)  # fmt: skip
    close("conv", expected, x=x, weight=weight, bias=bias, groups=groups, strides=strides,
          dilations=dilations, pad_type="custom", pad=pad)  # fmt: skip


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))
def test_same_keeps_one_output_for_every_stride(
    size: int, kernel: int, stride: int, dilation: int
) -> None:
    for kind in ("same", "same_lower"):
        result = eval_op("conv", x=noise(1, 1, size), weight=noise(1, 1, kernel), strides=[stride],
                         dilations=[dilation], pad_type=kind)  # fmt: skip
        assert result.shape[2] == -(-size // stride)


X, WEIGHT = f32([[[1, 2, 3]]]), f32([[[1, 10]]])


def test_transposed_written_out() -> None:
    same("conv_transpose", [[[1, 12, 23, 30]]], x=X, weight=WEIGHT)
    same("conv_transpose", [[[1, 10, 2, 20, 3, 30]]], x=X, weight=WEIGHT, strides=[2])
    same("conv_transpose", [[[1, 2, 13, 20, 30]]], x=X, weight=WEIGHT, dilations=[2])
    same("conv_transpose", [[[12, 23]]], x=X, weight=WEIGHT, pad_type="custom", pad=[1, 1])
    same("conv_transpose", [[[6, 17, 28, 35]]], x=X, weight=WEIGHT, bias=f32([5]))
    # Of the whole, 1 12 23 30: the odd element is cut off after, or before.
    same("conv_transpose", [[[1, 12, 23]]], x=X, weight=WEIGHT, pad_type="same")
    same("conv_transpose", [[[12, 23, 30]]], x=X, weight=WEIGHT, pad_type="same_lower")
    expected = [[[1, 10, 0, 2, 20, 0, 3, 30, 0]]]
    same("conv_transpose", expected, x=X, weight=WEIGHT, pad_type="same", strides=[3])


@pytest.mark.parametrize(
    ("pad_type", "pad", "size", "expected"),
    [
        ("valid", None, 4, [1, 12, 23, 30]),
        ("valid", None, 5, [1, 12, 23, 30, 0]),
        ("custom", [1, 1], 2, [12, 23]),
        ("custom", [1, 1], 3, [12, 23, 30]),
        ("custom", [1, 1], 4, [12, 23, 30, 0]),
        ("same", None, 3, [1, 12, 23]),
        ("same", None, 2, [12, 23]),
    ],
)
def test_output_shape(pad_type: str, pad: Any, size: int, expected: list[float]) -> None:
    same("conv_transpose", [[expected]], x=X, weight=WEIGHT, pad_type=pad_type, pad=pad,
         output_shape=[1, 1, size])  # fmt: skip


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_transposed_as_torch(spatial: int) -> None:
    x, weight = noise(2, 4, *(3, 4, 5)[:spatial]), noise(4, 4, *(3, 3, 4)[:spatial], seed=1)
    bias, function = noise(8, seed=2), getattr(F, f"conv_transpose{spatial}d")
    expected = function(*map(torch.from_numpy, (x, weight, bias)), stride=2, dilation=2, padding=1,
                        groups=2)  # fmt: skip
    close("conv_transpose", expected, x=x, weight=weight, bias=bias, groups=2, pad_type="custom",
          pad=[1, 1] * spatial, strides=[2] * spatial, dilations=[2] * spatial,
          output_shape=expected.shape)  # fmt: skip


@settings(max_examples=40)
@given(st.data())
def test_the_adjoint_of_conv(data: st.DataObject) -> None:
    """<conv(u), v> = <u, conv_transpose(v)>, for every kind of padding."""
    small = st.integers(1, 3)
    kernel, stride, dilation = data.draw(small), data.draw(small), data.draw(small)
    kind = data.draw(st.sampled_from(["valid", "same", "same_lower", "custom"]))
    size = data.draw(st.integers((kernel - 1) * dilation + 1, 12))
    both = {"weight": noise(3, 2, kernel, seed=1), "strides": [stride], "dilations": [dilation],
            "pad_type": kind, "pad": [1, 0] if kind == "custom" else None}  # fmt: skip
    u = noise(1, 2, size)
    image = eval_op("conv", x=u, **both)
    v = noise(*image.shape, seed=2)
    back = eval_op("conv_transpose", x=v, **both, output_shape=u.shape)
    assert (image * v).sum() == pytest.approx((u * back).sum(), rel=1e-4, abs=1e-4)


SEVEN = f32([[[1, 2, 3, 4, 5, 6, 7]]])
AVERAGE = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
MAXIMUM = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def test_pools_written_out() -> None:
    strided = {"x": SEVEN, "kernel_sizes": [3], "strides": [3]}
    same("avg_pool", [[[2, 5]]], **strided, pad_type="valid")
    same("max_pool", [[[3, 6]]], **strided, pad_type="valid")
    same("l2_pool", np.sqrt(f32([[[14, 77]]])), **strided, pad_type="valid")
    same("max_pool", [[[2, 5, 7]]], **strided, pad_type="same")
    same("avg_pool", [[[1, 4, f32(13) / 3]]], **strided, pad_type="same")
    same("avg_pool", [[[1.5, 4, 6.5]]], **strided, pad_type="same",
         exclude_padding_from_average=True)  # fmt: skip
    close("l2_pool", [[[2.236068, 7.071068, 9.219544]]], **strided, pad_type="same")
    x, kernel = f32([[[1, 2]]]), {"kernel_sizes": [2], "pad_type": "same_lower"}
    same("avg_pool", [[[0.5, 1.5]]], x=x, **kernel)
    same("max_pool", [[[1, 2]]], x=x, **kernel)
    close("l2_pool", [[[1, 2.236068]]], x=x, **kernel)
    square = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    same("avg_pool", [[[[0.25, 0.75], [1, 2.5]]]], x=square, kernel_sizes=[2, 2],
         pad_type="same_lower")  # fmt: skip
    # The last window is cut off where the padding ends, and divides by what is left of it.
    ceil = {"x": SEVEN, "kernel_sizes": [2], "strides": [2], "pad_type": "valid", "ceil_mode": True}
    same("max_pool", [[[2, 4, 6, 7]]], **ceil)
    same("avg_pool", [[[1.5, 3.5, 5.5, 7]]], **ceil)
    x, around = f32([[[-5, -7]]]), {"kernel_sizes": [2], "pad_type": "custom", "pad": [1, 1]}
    same("max_pool", [[[-5, -5, -7]]], x=x, **around)
    same("avg_pool", [[[-2.5, -6, -3.5]]], x=x, **around)
    x = f32([[[np.nan, 1, 1, 1]]])
    for op in ("max_pool", "avg_pool"):
        same(op, [[[np.nan, 1, 1]]], x=x, kernel_sizes=[2], pad_type="valid")
    # Zeros, as long as padding counts.
    at_end = {"kernel_sizes": [1], "pad_type": "custom", "pad": [1, 0]}
    same("avg_pool", [[[0, 1, 2]]], x=SEVEN[..., :2], **at_end)
    x = noise(1, 4, 40, 50)
    expected = x.mean((2, 3), keepdims=True)
    close("avg_pool", expected, x=x, kernel_sizes=[40, 50], pad_type="valid")
    same("max_pool", x.max((2, 3), keepdims=True), x=x, kernel_sizes=[40, 50], pad_type="valid")


PADS = [(spatial, pad, ceil) for spatial in (1, 2, 3) for pad in (0, 1) for ceil in (False, True)]


@pytest.mark.drawn
@pytest.mark.parametrize(("spatial", "pad", "ceil"), PADS)
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (2, 1)])
def test_pools_as_torch(spatial: int, pad: int, ceil: bool, kernel: int, stride: int) -> None:
    x = noise(2, 3, *(5, 6, 7)[:spatial])
    window = {"kernel_sizes": [kernel] * spatial, "strides": [stride] * spatial,
              "pad_type": "custom", "pad": [pad, pad] * spatial, "ceil_mode": ceil}  # fmt: skip
    torched: Any = (torch.from_numpy(x), kernel, stride, pad)
    close("max_pool", MAXIMUM[spatial - 1](*torched, ceil_mode=ceil), x=x, **window)
    if not ceil:
        squares = AVERAGE[spatial - 1](torched[0].square(), *torched[1:]) * kernel**spatial
        close("l2_pool", squares.sqrt(), x=x, **window)
    for exclude in (False, True):
        expected = AVERAGE[spatial - 1](*torched, ceil, not exclude)
        close("avg_pool", expected, x=x, **window, exclude_padding_from_average=exclude)
