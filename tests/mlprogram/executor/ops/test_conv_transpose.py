"""Transposed convolution: sums written out, torch's own, and conv's adjoint."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same

X, WEIGHT = f32([[[1, 2, 3]]]), f32([[[1, 10]]])
FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def test_one_dimension_written_out() -> None:
    same("conv_transpose", [[[1, 12, 23, 30]]], x=X, weight=WEIGHT)
    same("conv_transpose", [[[1, 10, 2, 20, 3, 30]]], x=X, weight=WEIGHT, strides=[2])
    same("conv_transpose", [[[1, 2, 13, 20, 30]]], x=X, weight=WEIGHT, dilations=[2])
    same("conv_transpose", [[[12, 23]]], x=X, weight=WEIGHT, pad_type="custom", pad=[1, 1])
    same("conv_transpose", [[[6, 17, 28, 35]]], x=X, weight=WEIGHT, bias=f32([5]))


def test_same_gives_the_stride_times_the_size() -> None:
    """Of the whole, 1 12 23 30: the odd element is cut off after, or before."""
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


CASES = list(itertools.product((1, 2, 3), (1, 2, 4), (1, 2), (1, 2), (0, 1)))


@pytest.mark.parametrize(("spatial", "groups", "stride", "dilation", "pad"), CASES)
def test_as_torch(spatial: int, groups: int, stride: int, dilation: int, pad: int) -> None:
    x = noise(2, 4, *(3, 4, 5)[:spatial])
    weight = noise(4, 8 // groups, *(3, 3, 4)[:spatial], seed=1)
    bias = noise(8, seed=2)
    expected = FUNCTIONS[spatial - 1](*map(torch.from_numpy, (x, weight, bias)), stride=stride,
                                      dilation=dilation, padding=pad, groups=groups)  # fmt: skip
    close("conv_transpose", expected, x=x, weight=weight, bias=bias, groups=groups,
          pad_type="custom", pad=[pad, pad] * spatial, strides=[stride] * spatial,
          dilations=[dilation] * spatial, output_shape=expected.shape)  # fmt: skip


def test_output_padding_as_torch() -> None:
    x, weight = noise(1, 2, 4, 5), noise(2, 3, 3, 3, seed=1)
    expected = F.conv_transpose2d(torch.from_numpy(x), torch.from_numpy(weight), stride=2,
                                  padding=1, output_padding=1)  # fmt: skip
    close("conv_transpose", expected, x=x, weight=weight, strides=[2, 2], pad_type="custom",
          pad=[1, 1, 1, 1], output_shape=[1, 3, 8, 10])  # fmt: skip


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


def test_float64_stays() -> None:
    found = eval_op("conv_transpose", x=X.astype(np.float64), weight=WEIGHT.astype(np.float64))
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weight": f32([[[1]], [[1]]])}, "x has 1 channels; the weight takes 2"),
        ({"weight": WEIGHT, "output_shape": [1, 2, 4]}, r"does not begin with \[1, 1\]"),
        ({"weight": WEIGHT, "output_shape": [4]}, "3 integers are needed"),
        ({"weight": WEIGHT, "pad_type": "custom", "pad": [2, 2]}, "no output is left"),
        ({"weight": WEIGHT, "pad_type": "full"}, "unknown pad_type 'full'"),
    ],
)
def test_what_does_not_fit(parameters: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        eval_op("conv_transpose", x=X, **parameters)
