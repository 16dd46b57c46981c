"""Resizing: the definitions' grid points, and torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from pytest_ane.mlprogram.executor.ops.resizing import SAMPLING_MODES
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same

TWO = f32([[[0, 1]]])
"""Two pixels, 0 and 1: what is sampled from them is where."""

POINTS = [
    ("UNALIGN_CORNERS", [0, 0.1, 0.5, 0.9, 1]),
    ("STRICT_ALIGN_CORNERS", [0, 0.25, 0.5, 0.75, 1]),
    ("ALIGN_CORNERS", [0, 0.25, 0.5, 0.75, 1]),
    ("DEFAULT", [0, 0.4, 0.8, 1, 1]),
    ("OFFSET_CORNERS", [0.1, 0.3, 0.5, 0.7, 0.9]),
    ("UNALIGN_CORNERS", [0, 0, 1 / 3, 2 / 3, 1, 1]),
    ("ALIGN_CORNERS", [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ("DEFAULT", [0, 1 / 3, 2 / 3, 1, 1, 1]),
    ("OFFSET_CORNERS", [1 / 12, 3 / 12, 5 / 12, 7 / 12, 9 / 12, 11 / 12]),
    ("STRICT_ALIGN_CORNERS", [0]),
    ("ALIGN_CORNERS", [0.5]),
    ("UNALIGN_CORNERS", [0.5]),
    ("OFFSET_CORNERS", [0.5]),
    ("DEFAULT", [0]),
]


@pytest.mark.parametrize(("mode", "points"), POINTS)
def test_grid_points_as_documented(mode: str, points: list[float]) -> None:
    close("resize_bilinear", [[points]], x=TWO, target_size_width=len(points), sampling_mode=mode)
    close("resize", [[points]], x=TWO, shape=[1, len(points)], resized_dims=2, sampling_mode=mode)


@pytest.mark.parametrize(("height", "width"), [(3, 5), (8, 14), (11, 1)])
def test_resize_bilinear_as_torch(height: int, width: int) -> None:
    x = noise(2, 3, 4, 7)
    for align, mode in ((True, "STRICT_ALIGN_CORNERS"), (False, "UNALIGN_CORNERS")):
        expected = F.interpolate(torch.from_numpy(x), (height, width), mode="bilinear",
                                 align_corners=align)  # fmt: skip
        close("resize_bilinear", expected, x=x, target_size_height=height,
              target_size_width=width, sampling_mode=mode)  # fmt: skip


def test_resize_over_three_axes_as_torch() -> None:
    x = noise(1, 2, 3, 4, 5)
    expected = F.interpolate(torch.from_numpy(x), (5, 4, 9), mode="trilinear")
    close("resize", expected, x=x, shape=[5, 0, 9], resized_dims=3, sampling_mode="UNALIGN_CORNERS")


def test_nearest_neighbours() -> None:
    x = f32([[[0.25], [6]]])
    same("resize_nearest_neighbor", [[[0.25] * 3, [6] * 3]], x=x, target_size_height=2,
         target_size_width=3)  # fmt: skip
    expected = [[[0.25, 0.25], [6, 6], [6, 6]]]
    same("resize_nearest_neighbor", expected, x=x, target_size_height=3, target_size_width=2)
    same("resize", expected, x=x, shape=[9, 3, 2], resized_dims=2,
         interpolation_mode="NEAREST_NEIGHBOR")  # fmt: skip


@pytest.mark.parametrize(("height", "width"), [(5, 30), (25, 3), (10, 20), (7, 13)])
def test_nearest_neighbours_as_torch(height: int, width: int) -> None:
    x, target = noise(2, 10, 20), (height, width)
    batch = torch.from_numpy(x)[None]
    same("resize_nearest_neighbor", F.interpolate(batch, target, mode="nearest-exact")[0],
         x=x, target_size_height=height, target_size_width=width)  # fmt: skip
    factors = {"scale_factor_height": height / 10, "scale_factor_width": width / 20}
    same("upsample_nearest_neighbor", F.interpolate(batch, target, mode="nearest")[0], x=x,
         **factors)  # fmt: skip


def test_nearest_of_aligned_corners() -> None:
    same("resize", [[0, 0, 1, 2, 2]], x=f32([[0, 1, 2]]), shape=[5], resized_dims=1,
         interpolation_mode="NEAREST_NEIGHBOR", sampling_mode="UNALIGN_CORNERS")  # fmt: skip
    same("resize", [[0, 1, 1, 2, 2]], x=f32([[0, 1, 2]]), shape=[5], resized_dims=1,
         interpolation_mode="NEAREST_NEIGHBOR", sampling_mode="ALIGN_CORNERS")  # fmt: skip


def test_what_resize_leaves_be() -> None:
    x = noise(1, 2, 3, 4)
    same("resize", x, x=x, shape=np.array([1, 0, 0], np.int32), resized_dims=2)
    same("resize", x, x=x, shape=[7], resized_dims=0)
    assert eval_op("resize", x=x, shape=[1, 6, 8], resized_dims=2).shape == (1, 2, 6, 8)


def test_upsample_nearest_neighbor() -> None:
    x = f32([[[1.5, -2.5, 3.5]]])
    same("upsample_nearest_neighbor", [[[1.5, 1.5, -2.5, -2.5, 3.5, 3.5]]], x=x,
         scale_factor_width=2)  # fmt: skip
    same("upsample_nearest_neighbor", [[[1.5, -2.5]] * 3], x=x, scale_factor_height=3.17,
         scale_factor_width=0.67)  # fmt: skip
    same("upsample_nearest_neighbor", [[[1.5, -2.5, 3.5]] * 2], x=x, scale_factor_height=2.0,
         scale_factor_width=1.12)  # fmt: skip


@pytest.mark.parametrize(
    ("align", "half", "expected"),
    [
        (True, None, [1, 1.2, 1.4, 1.6, 1.8, 2]),
        (True, False, [1, 1.2, 1.4, 1.6, 1.8, 2]),
        (False, None, [1, 1, 4 / 3, 5 / 3, 2, 2]),
        (False, True, [1, 1, 4 / 3, 5 / 3, 2, 2]),
        (False, False, [1, 4 / 3, 5 / 3, 2, 2, 2]),
    ],
)
def test_upsample_bilinear(align: bool, half: bool | None, expected: list[float]) -> None:
    close("upsample_bilinear", [[expected] * 2], x=f32([[[1, 2]]]), scale_factor_height=2,
          scale_factor_width=3, align_corners=align, half_pixel_centers=half)  # fmt: skip


@pytest.mark.parametrize("factors", [(3, 4), (2.5, 2.0), (0.5, 0.75), (2.6, 1.3)])
@pytest.mark.parametrize("align", [True, False])
def test_upsample_bilinear_as_torch(factors: tuple[float, float], align: bool) -> None:
    x = noise(2, 3, 10, 12)
    expected = F.interpolate(torch.from_numpy(x), scale_factor=factors, mode="bilinear",
                             align_corners=align, recompute_scale_factor=True)  # fmt: skip
    close("upsample_bilinear", expected, x=x, scale_factor_height=factors[0],
          scale_factor_width=factors[1], align_corners=align)  # fmt: skip


def test_a_scaled_size_is_that_of_float32() -> None:
    """Ten times 0.7 is 7 there, and a little less in float64."""
    factor = float(np.float32(0.7))
    assert eval_op("upsample_bilinear", x=noise(1, 1, 10), scale_factor_width=factor).shape[2] == 7


def test_an_infinite_neighbour_without_weight_does_not_count() -> None:
    same("resize_bilinear", [[[1, np.inf, np.inf]]], x=f32([[[1, np.inf]]]),
         target_size_width=3, sampling_mode="ALIGN_CORNERS")  # fmt: skip


@settings(max_examples=40)
@given(st.sampled_from(SAMPLING_MODES), st.integers(1, 6), st.integers(1, 6))
def test_a_plane_of_one_value_stays_one(mode: str, height: int, width: int) -> None:
    close("resize_bilinear", np.full((1, height, width), 3), x=np.full((1, 3, 2), 3, np.float32),
          target_size_height=height, target_size_width=width, sampling_mode=mode)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_stays(dtype: Any) -> None:
    x = noise(1, 3, 4).astype(dtype)
    assert eval_op("resize_bilinear", x=x, target_size_width=7).dtype == dtype
    assert eval_op("resize_nearest_neighbor", x=x, target_size_height=2,
                   target_size_width=7).dtype == dtype  # fmt: skip


def test_integers_resize() -> None:
    x = np.array([[0, 10]], np.int32)
    same("resize", [[0, 0, 10, 10]], x=x, shape=[4], resized_dims=1,
         interpolation_mode="NEAREST_NEIGHBOR")  # fmt: skip
    same("resize", [[0, 5, 10, 10]], x=x, shape=[4], resized_dims=1)


def test_crop() -> None:
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
    same("crop", [[[2, 3], [6, 7], [10, 11]]], x=x, crop_height=[0, 1], crop_width=[1, 1])
    same("crop", x, x=x, crop_height=[0, 0], crop_width=[0, 0])


@pytest.mark.parametrize(
    ("op", "parameters", "message"),
    [
        ("crop", {"crop_height": [3, 2], "crop_width": [0, 0]}, "1 rows and 2 columns cannot lose"),
        ("crop", {"crop_height": [0, -1], "crop_width": [0, 0]}, "cannot lose"),
        ("resize_bilinear", {"sampling_mode": "CORNERS"}, "unknown sampling_mode 'CORNERS'"),
        ("resize_bilinear", {"target_size_width": 0}, "a size of 0 is not positive"),
        ("resize", {"shape": [1, 1, 1, 5], "resized_dims": 2}, "do not fit rank 3"),
        ("resize", {"shape": [5], "resized_dims": 2}, "do not fit rank 3"),
        ("resize", {"shape": [5], "resized_dims": 1, "interpolation_mode": "CUBIC"}, "'CUBIC'"),
        ("upsample_bilinear", {"half_pixel_centers": True}, "exclude each other"),
        ("upsample_nearest_neighbor", {"scale_factor_width": 0.4}, "leaves nothing of 2 elements"),
    ],
)
def test_what_cannot_be_resized(op: str, parameters: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        eval_op(op, x=TWO, **parameters)
