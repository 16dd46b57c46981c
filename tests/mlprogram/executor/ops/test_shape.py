"""Shapes, types, and blocks of space moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mlprogram.executor.ops.oracle import case, f32, noise, same

X = f32([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
def test_a_zero_keeps_an_axis(opset: str) -> None:
    same("reshape", X, x=X, shape=[0, -1], opset=opset)
    same("reshape", X, x=X, shape=[-1, 0], opset=opset)


def test_a_zero_counts_from_the_last_axis() -> None:
    x = np.zeros((2, 50), np.float32)
    same("reshape", x.reshape(1, 1, 2, 50), x=x, shape=[1, 0, -1, 0], opset="iOS17")
    same("reshape", x.reshape(2, 25, 2), x=x[..., None], shape=[0, -1, 2], opset="iOS17")
    same("reshape", x.reshape(1, 100), x=x.reshape(100), shape=[0, -1], opset="iOS17")


def test_scalars_and_empty_tensors() -> None:
    none = np.zeros((0, 3), np.float32)
    same("reshape", f32(5), x=f32([[5]]), shape=np.array([], np.int32))
    same("reshape", f32([[5]]), x=5.0, shape=[1, -1])
    same("reshape", none.reshape(3, 0), x=none, shape=[3, -1])
    same("reshape", none, x=none, shape=[0, 3])
    same("expand_dims", none[None], x=none, axes=[0])
    same("expand_dims", f32([[5]]), x=5.0, axes=[0, 1])
    same("squeeze", none, x=none[:, None], axes=[1])
    same("squeeze", f32(5), x=f32([[5]]))
    same("squeeze", f32(5), x=f32([5]), axes=[0])
    same("transpose", none.T, x=none, perm=[1, 0])
    same("transpose", f32(5), x=f32(5), perm=[])
    same("shape", [0, 3], x=none)
    same("shape", np.zeros(0), x=f32(5))
    same("cast", np.zeros((0, 3)), x=none, dtype="int32")
    same("cast", 5, x=5.7, dtype="int32")
    same("identity", none, x=none)
    none = np.zeros((0, 4, 2, 2), np.float32)
    same("pixel_shuffle", none.reshape(0, 1, 4, 4), x=none, upscale_factor=2)
    same("space_to_depth", none.reshape(0, 16, 1, 1), x=none, block_size=2)


def test_reshape_like() -> None:
    x, a, b = np.arange(180, dtype=np.float32), np.zeros((2, 3, 4)), np.zeros((1, 5, 6))
    same("reshape_like", x.reshape(2, 3, 5, 6), x=x, ref_tensors=(a, b), begins=(0, 1),
         ends=(2, 0), end_masks=(False, True))  # fmt: skip
    same("reshape_like", X.reshape(3, 2), x=X, ref_tensors=np.zeros((9, 3, 2, 7)), begins=-3,
         ends=-1, end_masks=False)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((3,), -1, (1, 3)),
        ((3,), 1, (3, 1)),
        ((4, 3), -1, (4, 3)),
        ((2, 3, 2), -1, (6, 2)),
        ((5, 5, 2), 1, (5, 10)),
        ((2, 3), 0, (1, 6)),
        ((0, 3, 2), 1, (0, 6)),
    ],
)
def test_flatten2d(shape: Any, axis: int, expected: Any) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    same("flatten2d", x.reshape(expected), x=x, axis=axis)


@pytest.mark.parametrize(
    ("x", "dtype", "expected"),
    [
        ([1.9, -1.9], "int32", [1, -1]),
        ([0, 0.5, -3], "bool", [False, True, True]),
        ([3, -3], "fp16", [3, -3]),
        ([3.5], "fp32", [3.5]),
        ([300, -1, -129, 1e9], "uint8", [255, 0, 0, 255]),
        ([300, -1.5, -129, -1e9], "int8", [127, -1, -128, -128]),
        ([70000, -1, 65535.5], "uint16", [65535, 0, 65535]),
        ([1e10, -1e10, np.inf, -np.inf, np.nan], "int32", [2**31 - 1, -(2**31)] * 2 + [0]),
        ([np.nan, np.inf, -0.0], "bool", [True, True, False]),
    ],
)
def test_cast(x: list[float], dtype: str, expected: list[Any]) -> None:
    same("cast", expected, x=f32(x), dtype=dtype)


SIDES = st.integers(1, 3)
BATCHED = f32([[0, 1, 3], [0, 9, 11], [0, 2, 4], [0, 10, 12], [0, 5, 7], [0, 13, 15], [0, 6, 8],
               [0, 14, 16]]).reshape(8, 1, 1, 3)  # fmt: skip
IMAGES = np.arange(1, 17, dtype=np.float32).reshape(2, 1, 2, 4)


def test_channels_and_space() -> None:
    deep, wide = f32([9, 5, 1, 3]).reshape(1, 4, 1, 1), f32([9, 5, 1, 3]).reshape(1, 1, 2, 2)
    same("depth_to_space", wide, x=deep, block_size=2)
    same("space_to_depth", deep, x=wide, block_size=2)
    same("pixel_shuffle", wide, x=deep, upscale_factor=2)
    same("pixel_unshuffle", deep, x=wide, downscale_factor=2)
    # TensorFlow's operations keep the channels of a position together, PyTorch's do not.
    x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    same("depth_to_space", [[[[0, 2], [4, 6]], [[1, 3], [5, 7]]]], x=x, block_size=2)
    same("pixel_shuffle", [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]], x=x, upscale_factor=2)


@settings(max_examples=30)
@given(SIDES, SIDES, SIDES, SIDES, SIDES)
def test_depth_position_by_position(n: int, c: int, h: int, w: int, b: int) -> None:
    x = noise(n, c, h * b, w * b)
    deep = np.concatenate([x[:, :, i::b, j::b] for i in range(b) for j in range(b)], axis=1)
    same("space_to_depth", deep, x=x, block_size=b)
    same("depth_to_space", x, x=deep, block_size=b)


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


LITERALS = [
    case("identity", X, x=X),
    case("shape", [2, 3], x=X),
    case("transpose", [[1, 4], [2, 5], [3, 6]], x=X, perm=[1, 0]),
    case("transpose", X.T, x=X, perm=[-1, 0]),
    case("expand_dims", X[:, None, :, None], x=X, axes=[1, 3]),
    case("expand_dims", X[..., None], x=X, axes=[-1]),
    case("squeeze", X, x=X[None, :, None], axes=[0, -2]),
    case("squeeze", X, x=X[None, :, None]),
    case("squeeze", X, x=X, axes=[0, 1]),
    case("squeeze", X, x=X[None], axes=[0, 1]),
    case("cast", [44, 255], x=np.int32([300, -1]), dtype="uint8"),
    case("cast", [-1, 2], x=np.uint16([65535, 2]), dtype="int16"),
    case("cast", [1, 0], x=np.array([True, False]), dtype="fp16"),
    case("cast", [True, False], x=np.int32([-2, 0]), dtype="bool"),
    case("space_to_batch", BATCHED, x=IMAGES, block_shape=[2, 2], paddings=[[0, 0], [2, 0]]),
    case("batch_to_space", IMAGES, x=BATCHED, block_shape=np.int32([2, 2]),
         crops=np.int32([[0, 0], [2, 0]])),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)


@settings(max_examples=30)
@given(SIDES, SIDES, SIDES, SIDES, SIDES)
def test_shuffles_as_torch_has_them(n: int, c: int, h: int, w: int, f: int) -> None:
    x = noise(n, c * f * f, h, w)
    shuffled = torch.nn.functional.pixel_shuffle(torch.from_numpy(x), f).numpy()
    same("pixel_shuffle", shuffled, x=x, upscale_factor=f)
    same("pixel_unshuffle", x, x=shuffled, downscale_factor=np.uint32(f))
