"""Sampling at coordinates: the definition's tests, and torch's grid_sample."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import close, f32, noise

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


def test_whole_coordinates() -> None:
    points = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int32).reshape(1, 2, 2, 2)
    modes = _resample(X, points, "bilinear", "constant", 6.17, MINUS, True)
    close("resample", [[[[27.5, 44], [27.5, 44]]]], **modes)


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


def test_one_pixel_repeats() -> None:
    for padding in ("border", "reflection", "symmetric"):
        modes = _resample(f32([[[[5]]]]), POINTS, "bilinear", padding, 0.0, "unnormalized", True)
        close("resample", np.full((1, 1, 2, 2), 5), **modes)


def test_far_away_and_nowhere() -> None:
    points = f32([[[[np.inf, 0], [-1e30, 0], [np.nan, 0]]]])
    modes = _resample(X, points, "bilinear", "constant", 7.0, "unnormalized", True)
    close("resample", [[[[7, 7, np.nan]]]], **modes)


def test_an_infinite_pixel_without_weight_does_not_count() -> None:
    x, points = f32([[[[1, np.inf]]]]), f32([[[[0, 0], [1, 0]]]])
    modes = _resample(x, points, "bilinear", "constant", 0.0, "unnormalized", True)
    close("resample", [[[[1, np.inf]]]], **modes)


def _affine(x: Any, matrix: Any, height: int, width: int, **others: Any) -> dict[str, Any]:
    return {"x": x, "transform_matrix": matrix, "output_height": height, "output_width": width,
            "sampling_mode": "bilinear", "padding_mode": "constant", "padding_value": 0.0,
            "coordinates_mode": MINUS, "align_corners": True} | others  # fmt: skip


def test_affine_as_documented() -> None:
    matrix = f32([[-1, -2, -3.7, -1, 3.5, 1.2]])
    expected = f32([10.7525, 2.5025, 0, 1.98, 0, 0, 0, 0, 0]).reshape(1, 1, 3, 3)
    close("affine", expected, **_affine(X, matrix, 3, 3))
    expected = f32([10.7525, 5.94, 2.5025, 0.44, 0, 0, 0, 0, 0, 0]).reshape(1, 1, 2, 5)
    close("affine", expected, **_affine(X, matrix, 2, 5))


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


def test_float64_stays() -> None:
    modes = _resample(X.astype(np.float64), POINTS, "bilinear", "border", 0.0, MINUS, True)
    assert eval_op("resample", **modes).dtype == np.float64


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        (("cubic", "border", 0.0, MINUS, True), "unknown sampling_mode 'cubic'"),
        (("nearest", "wrap", 0.0, MINUS, True), "unknown padding_mode 'wrap'"),
        (("nearest", "border", 0.0, "degrees", True), "unknown coordinates_mode 'degrees'"),
    ],
)
def test_unknown_modes(modes: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        eval_op("resample", **_resample(X, POINTS, *modes))


def test_operands_that_do_not_fit() -> None:
    modes = ("nearest", "border", 0.0, MINUS, True)
    with pytest.raises(Exception, match="do not fit images"):
        eval_op("resample", **_resample(X, POINTS[..., :1], *modes))
    with pytest.raises(Exception, match="does not fit images"):
        eval_op("affine", **_affine(X, f32([[1, 2, 3]]), 2, 2))
