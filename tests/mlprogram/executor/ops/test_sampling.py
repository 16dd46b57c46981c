"""Images at other sizes and places: the definitions' points, torch's and TensorFlow's formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import case, close, f32, noise, same

X = f32([[[[11, 22], [33, 44]]]])
POINTS = f32([[[[-1, -2], [-3.7, -1]], [[0, 0], [3.5, 1.2]]]])
MINUS = "normalized_minus_one_to_one"


def _resample(x: Any, points: Any, sampling: str, padding: str, value: float, coordinates: str,
              align: bool) -> dict[str, Any]:  # fmt: skip
    return {"x": x, "coordinates": points, "sampling_mode": sampling, "padding_mode": padding,
            "padding_value": value, "coordinates_mode": coordinates,
            "align_corners": align}  # fmt: skip


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("bilinear", "constant", 6.17, MINUS, True), [8.585, 6.17, 27.5, 6.17]),
        (("nearest", "border", -1.0, "unnormalized", False), [11, 11, 11, 44]),
        (("bilinear", "reflection", -1.0, "normalized_zero_to_one", True), [22, 36.3, 11, 34.1]),
        (("nearest", "symmetric", -1.0, "normalized_zero_to_one", False), [22, 33, 11, 33]),
    ],
)
def test_as_documented(modes: Any, expected: list[float]) -> None:
    close("resample", f32(expected).reshape(1, 1, 2, 2), **_resample(X, POINTS, *modes))


CASES = list(itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"),
                               (True, False)))  # fmt: skip


@pytest.mark.parametrize(("sampling", "padding", "align"), CASES)
def test_as_torch(sampling: str, padding: str, align: bool) -> None:
    x, points = noise(2, 3, 5, 4), noise(2, 6, 7, 2, seed=1) * 1.5
    expected = F.grid_sample(torch.from_numpy(x), torch.from_numpy(points), sampling, padding,
                             align)  # fmt: skip
    reflected = "reflection" if align else "symmetric"
    mode = {"zeros": "constant", "border": "border", "reflection": reflected}[padding]
    found = eval_op("resample", **_resample(x, points, sampling, mode, 0.0, MINUS, align))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_resampled_written_out() -> None:
    for padding in ("border", "reflection", "symmetric"):  # One pixel repeats.
        modes = _resample(f32([[[[5]]]]), POINTS, "bilinear", padding, 0.0, "unnormalized", True)
        close("resample", np.full((1, 1, 2, 2), 5), **modes)
    far = f32([[[[np.inf, 0], [-1e30, 0], [np.nan, 0]]]])
    modes = _resample(X, far, "bilinear", "constant", 7.0, "unnormalized", True)
    close("resample", [[[[7, 7, np.nan]]]], **modes)
    # An infinite pixel without weight does not count.
    x, points = f32([[[[1, np.inf]]]]), f32([[[[0, 0], [1, 0]]]])
    modes = _resample(x, points, "bilinear", "constant", 0.0, "unnormalized", True)
    close("resample", [[[[1, np.inf]]]], **modes)


def _affine(x: Any, matrix: Any, height: int, width: int, **others: Any) -> dict[str, Any]:
    return {"x": x, "transform_matrix": matrix, "output_height": height, "output_width": width,
            "sampling_mode": "bilinear", "padding_mode": "constant", "padding_value": 0.0,
            "coordinates_mode": MINUS, "align_corners": True} | others  # fmt: skip


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(4, 5), (1, 3), (7, 1)])
def test_affine_as_torch(align: bool, size: tuple[int, int]) -> None:
    x, matrix = noise(2, 3, 5, 4), noise(2, 6, seed=1)
    places = F.affine_grid(torch.from_numpy(matrix).reshape(2, 2, 3), [2, 3, *size], align)
    expected = F.grid_sample(torch.from_numpy(x), places, align_corners=align)
    found = eval_op("affine", **_affine(x, matrix, *size, align_corners=align))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["unnormalized", MINUS, "normalized_zero_to_one"])
@pytest.mark.parametrize("align", [True, False])
def test_the_identity(mode: str, align: bool) -> None:
    """The same in any coordinates, and one matrix serves all images."""
    x, same_place = noise(2, 3, 5, 4), f32([[1, 0, 0, 0, 1, 0]])
    identity = _affine(x, same_place, 5, 4, coordinates_mode=mode, align_corners=align)
    close("affine", x, **identity)


TWO = f32([[[0, 1]]])
"""Two pixels, 0 and 1: what is sampled from them is where."""

GRIDS = [
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


@pytest.mark.parametrize(("mode", "points"), GRIDS)
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


COLUMN, LINE, ROW = f32([[[0.25], [6]]]), f32([[0, 1, 2]]), f32([[[1.5, -2.5, 3.5]]])
TALL = [[[0.25, 0.25], [6, 6], [6, 6]]]
NEAREST: Any = {"interpolation_mode": "NEAREST_NEIGHBOR"}
WHOLE, TENS = noise(1, 2, 3, 4), np.array([[0, 10]], np.int32)
GRID = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 4)
LITERALS = [
    case("resize_nearest_neighbor", [[[0.25] * 3, [6] * 3]], x=COLUMN, target_size_height=2,
         target_size_width=3),
    case("resize", TALL, x=COLUMN, shape=[9, 3, 2], resized_dims=2, **NEAREST),
    case("resize", [[0, 0, 1, 2, 2]], x=LINE, shape=[5], resized_dims=1, **NEAREST,
         sampling_mode="UNALIGN_CORNERS"),
    case("resize", [[0, 1, 1, 2, 2]], x=LINE, shape=[5], resized_dims=1, **NEAREST,
         sampling_mode="ALIGN_CORNERS"),
    case("resize", WHOLE, x=WHOLE, shape=np.array([1, 0, 0], np.int32), resized_dims=2),
    case("resize", WHOLE, x=WHOLE, shape=[7], resized_dims=0),
    case("resize", [[0, 0, 10, 10]], x=TENS, shape=[4], resized_dims=1, **NEAREST),
    case("resize", [[0, 5, 10, 10]], x=TENS, shape=[4], resized_dims=1),
    case("resize_bilinear", [[[1, np.inf, np.inf]]], x=f32([[[1, np.inf]]]), target_size_width=3,
         sampling_mode="ALIGN_CORNERS"),
    case("upsample_nearest_neighbor", [[[1.5, -2.5]] * 3], x=ROW, scale_factor_height=3.17,
         scale_factor_width=0.67),
    case("crop", [[[2, 3], [6, 7], [10, 11]]], x=GRID, crop_height=[0, 1], crop_width=[1, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)


@pytest.mark.parametrize(("height", "width"), [(5, 30), (25, 3), (10, 20), (7, 13)])
def test_nearest_neighbours_as_torch(height: int, width: int) -> None:
    x, target = noise(2, 10, 20), (height, width)
    batch = torch.from_numpy(x)[None]
    same("resize_nearest_neighbor", F.interpolate(batch, target, mode="nearest-exact")[0],
         x=x, target_size_height=height, target_size_width=width)  # fmt: skip
    factors = {"scale_factor_height": height / 10, "scale_factor_width": width / 20}
    same("upsample_nearest_neighbor", F.interpolate(batch, target, mode="nearest")[0], x=x,
         **factors)  # fmt: skip


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


def test_a_scaled_size_is_that_of_float32() -> None:
    """Ten times 0.7 is 7 there, and a little less in float64."""
    factor = float(np.float32(0.7))
    assert eval_op("upsample_bilinear", x=noise(1, 1, 10), scale_factor_width=factor).shape[2] == 7


SQUARE = GRID[None]
ALIGNED = {"sampling_mode": "ALIGN_CORNERS"}


def _roi(*boxes: list[float]) -> Any:
    return f32(boxes).reshape(len(boxes), 1, -1, 1, 1)


def test_every_box_of_every_image() -> None:
    def cut(box: list[float], size: int, expected: Any, **others: Any) -> None:
        expected = f32(expected).reshape(1, 1, 1, size, size)
        close("crop_resize", expected, opset="iOS15", x=SQUARE, roi=_roi(box), target_height=size,
              target_width=size, **ALIGNED, **others)  # fmt: skip

    cut([1, 1, 2, 2], 2, [6, 7, 10, 11])
    cut([1, 1, 2, 2], 1, [8.5])
    cut([2, 2, 1, 1], 2, [11, 10, 7, 6])
    cut([0, 0, 0, 1 / 3, 1 / 3], 2, [1, 2, 5, 6], normalized_coordinates=True)
    thirds = [6 + i * 4 / 3 + j / 3 for i in range(4) for j in range(4)]
    cut([1, 1, 2, 2], 4, thirds)


def test_shapes_of_rois() -> None:
    x, size = noise(2, 3, 5, 6), {"target_height": 4, "target_width": 7}
    all_ = eval_op("crop_resize", opset="iOS16", x=x, roi=_roi([0, 0, 2, 2], [1, 1, 3, 4]), **size)
    assert all_.shape == (2, 2, 3, 4, 7)
    own = eval_op("crop_resize", opset="iOS16", x=x, **size,
                  roi=_roi([1, 0, 0, 2, 2], [0, 1, 1, 3, 4], [1, 1, 1, 3, 4]))  # fmt: skip
    assert own.shape == (3, 1, 3, 4, 7)
    np.testing.assert_array_equal(own[:, 0], [all_[0, 1], all_[1, 0], all_[1, 1]])


OUTSIDE = [[0.1, 0.3, 1.3, 1], [0.5, 1.8, 1, 0.3], [0, 0.4, 0.6, 0.7]]
"""Normalised boxes; two reach beyond the image, one of them backwards."""


def _expected(pad: float) -> Any:
    return f32([3.1, 5.2, pad, pad, pad, 7.9, pad, 13.9, 2.2, 3.1, 9.4, 10.3])


@pytest.mark.parametrize("pad", [0.0, 1.0, 10.0])
def test_beyond_the_image(pad: float) -> None:
    size: Any = {"target_height": 2, "target_width": 2, "normalized_coordinates": True}
    close("crop_resize", _expected(pad).reshape(3, 1, 1, 2, 2), opset="iOS16", x=SQUARE,
          roi=_roi(*([0, *box] for box in OUTSIDE)), **size, **ALIGNED,
          pad_value=pad)  # fmt: skip
    close("crop_resize", _expected(pad).reshape(3, 1, 2, 2), x=SQUARE, boxes=f32(OUTSIDE),
          box_indices=np.zeros(3, np.int32), **size, **ALIGNED, pad_value=pad)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "box"),
    [
        ("CORNERS_HEIGHT_FIRST", [0, 1, 2, 3]),
        ("CORNERS_WIDTH_FIRST", [1, 0, 3, 2]),
        ("CENTER_SIZE_HEIGHT_FIRST", [1, 2, 2, 2]),
        ("CENTER_SIZE_WIDTH_FIRST", [2, 1, 2, 2]),
    ],
)
def test_the_same_box_in_each_convention(mode: str, box: list[float]) -> None:
    corners: Any = {"x": SQUARE, "target_height": 2, "target_width": 2, "box_coordinate_mode": mode}
    same("crop_resize", [[[[2, 4], [10, 12]]]], boxes=f32([box]), **corners, **ALIGNED)
    halves = f32([box]) * 2
    same("crop_resize", [[[[2, 4], [10, 12]]]], boxes=halves, spatial_scale=0.5, **corners,
         **ALIGNED)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ("DEFAULT", [1, 1.75, 2.5, 3]),
        ("STRICT_ALIGN_CORNERS", [1, 5 / 3, 7 / 3, 3]),
        ("OFFSET_CORNERS", [1.25, 1.75, 2.25, 2.75]),
        ("UNALIGN_CORNERS", [1, 1.625, 2.375, 3]),
    ],
)
def test_sampling_within_the_box(mode: str, points: list[float]) -> None:
    """From column 1 to 3, as `resize_bilinear` samples three pixels; the values are the columns."""
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    close("crop_resize", [[[points]]], x=x, boxes=f32([[0, 1, 0, 3]]), target_width=4,
          sampling_mode=mode)  # fmt: skip


def test_resize_over_three_axes_as_torch() -> None:
    x = noise(1, 2, 3, 4, 5)
    expected = F.interpolate(torch.from_numpy(x), (5, 4, 9), mode="trilinear")
    close("resize", expected, x=x, shape=[5, 0, 9], resized_dims=3, sampling_mode="UNALIGN_CORNERS")


def test_boxes_of_their_own_images_by_default() -> None:
    x = noise(2, 3, 4, 4)
    found = eval_op("crop_resize", x=x, boxes=np.array([[0, 0, 3, 3], [1, 1, 2, 2]], np.uint16),
                    target_height=2, target_width=2, **ALIGNED)  # fmt: skip
    np.testing.assert_allclose(found[0], x[0][:, ::3, ::3], rtol=1e-6)
    np.testing.assert_allclose(found[1], x[1][:, 1:3, 1:3], rtol=1e-6)
