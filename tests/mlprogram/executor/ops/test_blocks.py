"""Blocks of space moved into channels or batches, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import f32, noise, same

SIDES = st.integers(1, 3)
BATCHED = f32([[0, 1, 3], [0, 9, 11], [0, 2, 4], [0, 10, 12], [0, 5, 7], [0, 13, 15], [0, 6, 8],
               [0, 14, 16]]).reshape(8, 1, 1, 3)  # fmt: skip
IMAGES = np.arange(1, 17, dtype=np.float32).reshape(2, 1, 2, 4)


def test_one_channel() -> None:
    deep, wide = f32([9, 5, 1, 3]).reshape(1, 4, 1, 1), f32([9, 5, 1, 3]).reshape(1, 1, 2, 2)
    same("depth_to_space", wide, x=deep, block_size=2)
    same("space_to_depth", deep, x=wide, block_size=2)
    same("pixel_shuffle", wide, x=deep, upscale_factor=2)
    same("pixel_unshuffle", deep, x=wide, downscale_factor=2)


def test_order_of_channels() -> None:
    """TensorFlow's operations keep the channels of a position together, PyTorch's do not."""
    x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    same("depth_to_space", [[[[0, 2], [4, 6]], [[1, 3], [5, 7]]]], x=x, block_size=2)
    same("pixel_shuffle", [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]], x=x, upscale_factor=2)


@settings(max_examples=30)
@given(SIDES, SIDES, SIDES, SIDES, SIDES)
def test_shuffles_as_torch_has_them(n: int, c: int, h: int, w: int, f: int) -> None:
    x = noise(n, c * f * f, h, w)
    shuffled = torch.nn.functional.pixel_shuffle(torch.from_numpy(x), f).numpy()
    same("pixel_shuffle", shuffled, x=x, upscale_factor=f)
    same("pixel_unshuffle", x, x=shuffled, downscale_factor=np.uint32(f))


@settings(max_examples=30)
@given(SIDES, SIDES, SIDES, SIDES, SIDES)
def test_depth_position_by_position(n: int, c: int, h: int, w: int, b: int) -> None:
    x = noise(n, c, h * b, w * b)
    deep = np.concatenate([x[:, :, i::b, j::b] for i in range(b) for j in range(b)], axis=1)
    same("space_to_depth", deep, x=x, block_size=b)
    same("depth_to_space", x, x=deep, block_size=b)


def test_space_to_batch() -> None:
    same("space_to_batch", BATCHED, x=IMAGES, block_shape=[2, 2], paddings=[[0, 0], [2, 0]])
    same("batch_to_space", IMAGES, x=BATCHED, block_shape=np.int32([2, 2]),
         crops=np.int32([[0, 0], [2, 0]]))  # fmt: skip


@settings(max_examples=30)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 2))
def test_batches_position_by_position(n: int, h: int, w: int, height: int, pad: int) -> None:
    blocks = (height, 2)
    x = noise(n, 2, h * height, w * 2)
    paddings = [[pad * height, 0], [2, 2 * pad]]
    padded = np.pad(x, ((0, 0), (0, 0), *(tuple(p) for p in paddings)))
    parts = [padded[:, :, i::height, j::2] for i in range(height) for j in range(2)]
    batched = np.concatenate(parts)
    same("space_to_batch", batched, x=x, block_shape=blocks, paddings=paddings)
    same("batch_to_space", x, x=batched, block_shape=blocks, crops=paddings)


def test_empty_batches() -> None:
    none = np.zeros((0, 4, 2, 2), np.float32)
    same("pixel_shuffle", none.reshape(0, 1, 4, 4), x=none, upscale_factor=2)
    same("space_to_depth", none.reshape(0, 16, 1, 1), x=none, block_size=2)


@pytest.mark.parametrize(
    ("op", "parameters"),
    [
        ("space_to_depth", {"block_size": 3}),
        ("depth_to_space", {"block_size": 2}),
        ("depth_to_space", {"block_size": 0}),
        ("pixel_shuffle", {"upscale_factor": 2}),
        ("pixel_unshuffle", {"downscale_factor": 3}),
        ("space_to_batch", {"block_shape": [2, 3], "paddings": [[0, 0], [0, 0]]}),
        ("space_to_batch", {"block_shape": [2, 2], "paddings": [[2, 0], [-2, 0]]}),
        ("batch_to_space", {"block_shape": [2, 2], "crops": [[0, 0], [0, 0]]}),
        ("batch_to_space", {"block_shape": [2, 1], "crops": [[3, 2], [0, 0]]}),
    ],
)
def test_blocks_that_do_not_fit(op: str, parameters: Any) -> None:
    with pytest.raises(Exception, match=r"not divide|negative|exceed"):
        eval_op(op, x=IMAGES, **parameters)
