"""Pooling: windows written out, and torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.mlprogram.executor.ops.oracle import close, f32, noise, same

X = f32([[[1, 2, 3, 4, 5, 6, 7]]])
AVERAGE = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
MAXIMUM = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def test_written_out() -> None:
    strided = {"x": X, "kernel_sizes": [3], "strides": [3]}
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
    ceil = {"x": X, "kernel_sizes": [2], "strides": [2], "pad_type": "valid", "ceil_mode": True}
    same("max_pool", [[[2, 4, 6, 7]]], **ceil)
    same("avg_pool", [[[1.5, 3.5, 5.5, 7]]], **ceil)
    x, around = f32([[[-5, -7]]]), {"kernel_sizes": [2], "pad_type": "custom", "pad": [1, 1]}
    same("max_pool", [[[-5, -5, -7]]], x=x, **around)
    same("avg_pool", [[[-2.5, -6, -3.5]]], x=x, **around)
    x = f32([[[np.nan, 1, 1, 1]]])
    for op in ("max_pool", "avg_pool"):
        same(op, [[[np.nan, 1, 1]]], x=x, kernel_sizes=[2], pad_type="valid")
    # Zeros, as long as padding counts.
    same("avg_pool", [[[0, 1, 2]]], x=X[..., :2], kernel_sizes=[1], pad_type="custom", pad=[1, 0])
    x = noise(1, 4, 40, 50)
    expected = x.mean((2, 3), keepdims=True)
    close("avg_pool", expected, x=x, kernel_sizes=[40, 50], pad_type="valid")
    same("max_pool", x.max((2, 3), keepdims=True), x=x, kernel_sizes=[40, 50], pad_type="valid")


PADS = [(spatial, pad, ceil) for spatial in (1, 2, 3) for pad in (0, 1) for ceil in (False, True)]


@pytest.mark.drawn
@pytest.mark.parametrize(("spatial", "pad", "ceil"), PADS)
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (2, 1)])
def test_as_torch(spatial: int, pad: int, ceil: bool, kernel: int, stride: int) -> None:
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
