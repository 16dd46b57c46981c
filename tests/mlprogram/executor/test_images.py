"""Pixels to tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pytest_ane.mlprogram.executor.images import to_pixels, to_tensor
from pytest_ane.mlprogram.executor.interface import present
from pytest_ane.mlprogram.records import DType, Feature


def image(color: str, shape: tuple[int, ...] = (2, 3), **options: Any) -> Feature:
    dtype = DType.FP16 if color == "GRAYSCALE_FLOAT16" else DType.UINT8
    return Feature("x", dtype, shape, kind="image", color=color, **options)


RED = np.zeros((2, 3, 3), np.uint8)
RED[..., 0] = 200


@pytest.mark.parametrize(("color", "channel"), [("RGB", 0), ("BGR", 2)])
def test_the_order_of_channels(color: str, channel: int) -> None:
    tensor = to_tensor(image(color), RED)
    assert tensor.shape == (1, 3, 2, 3)
    assert tensor.dtype == np.float32
    assert np.flatnonzero(tensor.sum((0, 2, 3))).tolist() == [channel]
    assert tensor.max() == 200
    np.testing.assert_array_equal(to_pixels(image(color), tensor), RED)


def test_rows_are_height() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert to_tensor(image("GRAYSCALE"), pixels).tolist() == [[[[0, 1, 2], [3, 4, 5]]]]


@pytest.mark.parametrize(
    ("color", "mode"),
    [("RGB", "RGB"), ("BGR", "RGB"), ("RGB", "RGBA"), ("GRAYSCALE", "L"),
     ("GRAYSCALE_FLOAT16", "F")],
)  # fmt: skip
def test_pil_images_are_their_pixels(color: str, mode: str) -> None:
    picture = Image.fromarray(RED).convert(mode)
    pixels = np.asarray(picture)
    expected = to_tensor(image(color), pixels[..., :3] if mode == "RGBA" else pixels)
    np.testing.assert_array_equal(to_tensor(image(color), picture), expected)


def test_grey_numbers_are_those_of_fp16() -> None:
    feature = image("GRAYSCALE_FLOAT16", (1, 3))
    x = np.array([[0.1, 2049.0, -1e6]], np.float32)
    expected = [[float(np.float16(0.1)), 2048.0, -np.inf]]
    assert to_tensor(feature, x)[0, 0].tolist() == expected
    assert to_pixels(feature, x[None, None]).tolist() == expected


@pytest.mark.parametrize(
    ("color", "value", "complaint"),
    [
        ("RGB", RED[..., 0], "shape [2, 3]"),
        ("RGB", np.zeros((2, 3, 4), np.uint8), "shape [2, 3, 4]"),
        ("RGB", np.zeros((3, 2, 3), np.uint8), "shape [3, 2, 3]"),
        ("RGB", RED.astype(np.float32), "dtype float32"),
        ("RGB", RED.astype(np.int64), "dtype int64"),
        ("RGB", "x.png", "dtype <U5"),
        ("RGB", Image.new("L", (3, 2)), "PIL mode L"),
        ("GRAYSCALE", Image.new("RGB", (3, 2)), "PIL mode RGB"),
        ("GRAYSCALE", Image.new("L", (2, 3)), "shape [3, 2]"),
        ("GRAYSCALE", RED, "shape [2, 3, 3]"),
        ("GRAYSCALE_FLOAT16", Image.new("L", (3, 2)), "PIL mode L"),
        ("GRAYSCALE_FLOAT16", RED[..., 0], "dtype uint8"),
    ],
)
def test_what_does_not_fit(color: str, value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^(shape|dtype|PIL mode)") as caught:
        to_tensor(image(color), value)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("options", "allowed", "refused", "text"),
    [
        ({}, [(2, 3)], [(3, 2), (2, 4)], "uint8 [2, 3, 3]"),
        ({"ranges": ((2, 4), (3, None))}, [(2, 3), (4, 99)], [(1, 3), (5, 3), (2, 2)],
         "uint8 [2..4, 3.., 3]"),
        ({"enumerated": ((2, 3), (4, 6))}, [(2, 3), (4, 6)], [(2, 6), (4, 3)],
         "uint8 of shape [2, 3, 3] or [4, 6, 3]"),
    ],
)  # fmt: skip
def test_sizes(options: Any, allowed: Any, refused: Any, text: str) -> None:
    feature = image("RGB", **options)
    assert present(feature) == f"a PIL image of mode RGB or {text}"
    for size in allowed:
        assert to_tensor(feature, np.zeros((*size, 3), np.uint8)).shape == (1, 3, *size)
    for size in refused:
        with pytest.raises(ValueError, match="shape"):
            to_tensor(feature, np.zeros((*size, 3), np.uint8))


def test_results_are_clipped_and_rounded() -> None:
    x = np.array([-1, 0.4, 0.6, 254.6, 256, 1e9, np.inf, -np.inf, np.nan], np.float32)
    pixels = to_pixels(image("GRAYSCALE"), x.reshape(1, 1, 1, -1))
    assert pixels.tolist() == [[0, 0, 1, 255, 255, 255, 255, 0, 0]]
    assert pixels.dtype == np.uint8


@pytest.mark.parametrize("shape", [(1, 1, 2, 3), (2, 3, 2, 3), (3, 2, 3), (2, 3)])
def test_results_that_are_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"not \[1, 3, H, W\]"):
        to_pixels(image("RGB"), np.zeros(shape, np.float32))


@given(st.sampled_from(["RGB", "BGR", "GRAYSCALE"]), st.integers(1, 5), st.integers(1, 5),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_there_and_back(color: str, height: int, width: int, seed: int) -> None:
    feature = image(color, (height, width))
    shape = (height, width) if color == "GRAYSCALE" else (height, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(to_pixels(feature, to_tensor(feature, pixels)), pixels)
