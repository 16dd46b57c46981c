"""Boxes of images: the definitions' tests, and TensorFlow's formula written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same

X = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
ALIGNED = {"sampling_mode": "ALIGN_CORNERS"}


def _roi(*boxes: list[float]) -> Any:
    return f32(boxes).reshape(len(boxes), 1, -1, 1, 1)


def test_every_box_of_every_image() -> None:
    def cut(box: list[float], size: int, expected: Any, **others: Any) -> None:
        expected = f32(expected).reshape(1, 1, 1, size, size)
        close("crop_resize", expected, opset="iOS15", x=X, roi=_roi(box), target_height=size,
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
    close("crop_resize", _expected(pad).reshape(3, 1, 1, 2, 2), opset="iOS16", x=X,
          roi=_roi(*([0, *box] for box in OUTSIDE)), **size, **ALIGNED,
          pad_value=pad)  # fmt: skip
    close("crop_resize", _expected(pad).reshape(3, 1, 2, 2), x=X, boxes=f32(OUTSIDE),
          box_indices=np.zeros(3, np.int32), **size, **ALIGNED, pad_value=pad)  # fmt: skip


def test_boxes_of_their_own_images_by_default() -> None:
    x = noise(2, 3, 4, 4)
    found = eval_op("crop_resize", x=x, boxes=np.array([[0, 0, 3, 3], [1, 1, 2, 2]], np.uint16),
                    target_height=2, target_width=2, **ALIGNED)  # fmt: skip
    np.testing.assert_allclose(found[0], x[0][:, ::3, ::3], rtol=1e-6)
    np.testing.assert_allclose(found[1], x[1][:, 1:3, 1:3], rtol=1e-6)


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
    corners: Any = {"x": X, "target_height": 2, "target_width": 2, "box_coordinate_mode": mode}
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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"boxes": f32(OUTSIDE)}, r"box_indices \[0, 1, 2\] exceed the 1 images"),
        ({"boxes": f32([[1, 1, 2, 2]]), "box_indices": [10]}, "exceed the 1 images"),
        ({"boxes": f32([[1, 1, 2, 2]]), "box_indices": [[0]]}, "do not fit x"),
        ({"boxes": f32([[1, 1, 2]])}, "do not fit x"),
        ({"boxes": f32([[1, 1, 2, 2]]), "box_coordinate_mode": "CENTER"}, "'CENTER'"),
        ({"boxes": f32([[1, 1, 2, 2]]), "sampling_mode": "NONE"}, "unknown sampling_mode 'NONE'"),
    ],
)
def test_what_cannot_be_cut_out(parameters: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        eval_op("crop_resize", x=X, **parameters)


def test_a_roi_of_another_shape() -> None:
    with pytest.raises(Exception, match="neither"):
        eval_op("crop_resize", opset="iOS15", x=X, roi=f32([[1, 1, 2, 2]]))
