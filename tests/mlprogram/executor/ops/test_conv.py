"""Convolution and its transpose: sums written out, torch's own, and each other's adjoint."""

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
from pytest_ane.mlprogram.executor.ops import conv as module
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same


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


def test_nan_spreads_under_its_window_only() -> None:
    x = f32([[[np.nan, 1, 1, 1]]])
    same("conv", [[[np.nan, 2, 2]]], x=x, weight=f32([[[1, 1]]]))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 3])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_a_group_for_each_channel(spatial: int, multiple: int, stride: int, dilation: int) -> None:
    x = noise(2, 4, *(7, 6, 5)[:spatial])
    weight = noise(4 * multiple, 1, *(3, 2, 2)[:spatial], seed=1)
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    expected = function(torch.from_numpy(x), torch.from_numpy(weight), stride=stride,
                        dilation=dilation, groups=4)  # fmt: skip
    close("conv", expected, x=x, weight=weight, groups=4, strides=[stride] * spatial,
          dilations=[dilation] * spatial)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("kernel", [2, 3])
def test_same_as_torch(spatial: int, size: int, kernel: int) -> None:
    """The odd element is padded after, there too."""
    x, weight = noise(1, 3, *[size] * spatial), noise(4, 3, *[kernel] * spatial, seed=1)
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    expected = function(torch.from_numpy(x), torch.from_numpy(weight), padding="same")
    close("conv", expected, x=x, weight=weight, pad_type="same")


def test_padding_of_its_own_at_each_end() -> None:
    x, weight = noise(1, 3, 5, 6), noise(4, 3, 2, 3, seed=1)
    padded = F.pad(torch.from_numpy(x), (2, 0, 0, 1))
    expected = F.conv2d(padded, torch.from_numpy(weight))
    close("conv", expected, x=x, weight=weight, pad_type="custom", pad=[0, 1, 2, 0])


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_columns_in_parts(spatial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few of the columns are built at a time, the sums are the same."""
    x, weight = noise(2, 4, *[6] * spatial), noise(6, 2, *[3] * spatial, seed=1)
    expected = eval_op("conv", x=x, weight=weight, groups=2)
    for limit in (1, 500):
        monkeypatch.setattr(module, "_COLUMNS", limit)
        close("conv", expected, x=x, weight=weight, groups=2)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("strides", "dilations"), [([1, 1], [1, 1]), ([2, 1], [1, 2])])
def test_a_product_for_each_position_of_the_kernel(
    groups: int, strides: list[int], dilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many channels and too many columns: the same sums another way."""
    x, weight = noise(3, 4 * groups, 7, 6), noise(6, 4, 3, 2, seed=1)
    given = {"x": x, "weight": weight, "groups": groups}
    given |= {"strides": strides, "dilations": dilations}
    expected = eval_op("conv", **given)
    monkeypatch.setattr(module, "_MANY", 1)
    monkeypatch.setattr(module, "_COLUMNS", 1)
    close("conv", expected, **given)


def test_one_position_with_strides_and_groups() -> None:
    x, weight = noise(2, 4, 5, 6), noise(6, 2, 1, 1, seed=1)
    expected = F.conv2d(torch.from_numpy(x), torch.from_numpy(weight), stride=(2, 3), groups=2)
    close("conv", expected, x=x, weight=weight, groups=2, strides=[2, 3])


@pytest.mark.parametrize("groups", [1, 4])
def test_float64_stays(groups: int) -> None:
    x, weight = noise(1, 4, 5).astype(np.float64), noise(4, 4 // groups, 2).astype(np.float64)
    assert eval_op("conv", x=x, weight=weight, groups=groups).dtype == np.float64


def test_no_batch_at_all() -> None:
    weight = noise(4, 3, 2, 2)
    assert eval_op("conv", x=noise(0, 3, 5, 5), weight=weight).shape == (0, 4, 4, 4)


@pytest.mark.parametrize(
    ("weight", "groups", "message"),
    [
        ((4, 3, 2), 1, "x has 4 channels; the weight takes 3, gives 4"),
        ((3, 2, 2), 2, "both are to divide into 2 groups"),
        ((4, 4, 9), 1, r"a kernel of \(9,\), dilated by \(1,\), does not fit"),
    ],
)
def test_weights_that_do_not_fit(weight: tuple[int, ...], groups: int, message: str) -> None:
    with pytest.raises(Exception, match=message):
        eval_op("conv", x=noise(1, 4, 8), weight=noise(*weight), groups=groups)


X, WEIGHT = f32([[[1, 2, 3]]]), f32([[[1, 10]]])
FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def test_transposed_written_out() -> None:
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


TRANSPOSED = list(itertools.product((1, 2, 3), (1, 2, 4), (1, 2), (1, 2), (0, 1)))


@pytest.mark.parametrize(("spatial", "groups", "stride", "dilation", "pad"), TRANSPOSED)
def test_transposed_as_torch(
    spatial: int, groups: int, stride: int, dilation: int, pad: int
) -> None:
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


def test_transposed_float64_stays() -> None:
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
