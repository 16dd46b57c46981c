"""Filled tensors, and random ones: the same numbers everywhere, of the right distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import eval_op
from pytest_ane.mlprogram.executor.ops.filling import DEFAULT_SEED
from tests.mlprogram.executor.ops.oracle import f32, same


def typed(op: str, expected: Any, dtype: Any, **parameters: Any) -> None:
    same(op, expected, **parameters)
    assert eval_op(op, **parameters).dtype == dtype


def test_fill() -> None:
    typed("fill", np.zeros((2, 3)), np.float32, shape=np.int32([2, 3]))
    typed("fill", [7, 7], np.int32, shape=[2], value=7)
    typed("fill", [True], np.bool_, shape=[1], value=True)
    typed("fill", f32([0.1]), np.float64, shape=[1], value=np.float64(f32(0.1)))
    same("fill", np.zeros((2, 0)), shape=[2, 0])
    same("fill", f32(5), shape=np.array([], np.int32), value=5.0)
    typed("fill_like", np.full((2, 3), 5), np.int32, ref_tensor=np.ones((2, 3), np.float32),
          value=5)  # fmt: skip
    typed("fill_like", np.zeros((0, 3)), np.float32, ref_tensor=np.ones((0, 3), np.int32))


def test_one_hot() -> None:
    x = np.int32([1, 0])
    typed("one_hot", [[0, 1, 0, 0], [1, 0, 0, 0]], np.int32, indices=x, one_hot_vector_size=4)
    same("one_hot", [[0, 1], [1, 0], [0, 0], [0, 0]], indices=x, one_hot_vector_size=4, axis=0)
    typed("one_hot", f32([[0.1, 1, 0.1, 0.1], [1, 0.1, 0.1, 0.1]]), np.float32, indices=x,
          one_hot_vector_size=4, on_value=1.0, off_value=0.1)  # fmt: skip
    same("one_hot", [[9, 1, 9, 9], [1, 9, 9, 9]], indices=x, one_hot_vector_size=np.array(4),
         on_value=1, off_value=9)  # fmt: skip
    same("one_hot", [[0, 0], [0, 0], [0, 1]], indices=np.int32([-1, 2, 1]), one_hot_vector_size=2)
    same("one_hot", [0, 0, 1], indices=2, one_hot_vector_size=3)
    same("one_hot", np.zeros((2, 0)), indices=np.int32([0, 1]), one_hot_vector_size=0)
    same("one_hot", np.zeros((0, 3)), indices=np.zeros(0, np.int32), one_hot_vector_size=3)


def test_range_1d() -> None:
    typed("range_1d", [5, 7, 9, 11], np.int32, start=5, end=12, step=2)
    typed("range_1d", [5, 3], np.int32, start=np.int32(5), end=np.array(1, np.int32), step=-2)
    typed("range_1d", [0, 0.5, 1], np.float32, start=0.0, end=1.5, step=0.5)
    typed("range_1d", [1, 0.5, 0, -0.5], np.float32, start=1.0, end=f32(-1), step=-0.5)
    typed("range_1d", [0, 1], np.float64, start=np.float64(0), end=np.float64(2), step=1.0)
    same("range_1d", [], start=1, end=1, step=1)
    same("range_1d", [], start=1.0, end=0.0, step=1.0)
    # (0.3 - 0) / 0.1 is 3 in float32, and a little more with the same numbers in float64.
    typed("range_1d", f32([0, 0.1, 0.2]), np.float32, start=0.0, end=0.3, step=0.1)
    assert len(eval_op("range_1d", start=0.0, end=1.0, step=0.1)) == 10


X = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def test_band_part() -> None:
    same("band_part", [[1, 2, 3], [0, 5, 6], [0, 0, 9]], x=X, lower=0, upper=-1)
    same("band_part", [[1, 0, 0], [4, 5, 0], [7, 8, 9]], x=X, lower=-1, upper=0)
    same("band_part", [[1, 0, 0], [0, 5, 0], [0, 0, 9]], x=X, lower=0, upper=0)
    same("band_part", [[1, 2, 0], [4, 5, 6], [7, 8, 9]], x=X, lower=2, upper=1)
    same("band_part", X, x=X)
    x = np.full((2, 2), -np.inf, np.float32)
    same("band_part", [[0, -np.inf], [0, 0]], x=np.triu(x, 1) + np.triu(x, 1), lower=0)
    same("band_part", [[-np.inf, 0], [0, -np.inf]], x=x, lower=0, upper=0)


OPS: list[tuple[str, dict[str, Any]]] = [
    ("random_uniform", {"shape": np.int32([2, 3])}),
    ("random_normal", {"shape": [2, 3]}),
    ("random_bernoulli", {"shape": [40]}),
    ("random_categorical", {"x": np.zeros((2, 9), np.float32), "size": 9}),
]
N = 20000


@pytest.mark.parametrize(("op", "parameters"), OPS)
def test_one_seed_gives_the_same_numbers(op: str, parameters: Any) -> None:
    def draw(**seed: Any) -> Any:
        return eval_op(op, **parameters, **seed).tolist()

    assert draw(seed=7) == draw(seed=7)
    assert draw(seed=7) != draw(seed=8)
    assert draw() == draw(seed=-1) == draw(seed=None) == draw(seed=DEFAULT_SEED)
    assert draw(seed=-2) == draw(seed=-2) != draw()


def test_the_numbers_themselves() -> None:
    """Written down, so that another machine or version of numpy that differs is noticed."""
    uniform = eval_op("random_uniform", shape=[3], seed=1)
    normal = eval_op("random_normal", shape=[3], seed=1)
    categorical = eval_op("random_categorical", x=f32([0, 1, 2, 3]), size=8, seed=1)
    assert uniform.view(np.uint32).tolist() == [0x3E9B6D45, 0x3F5944FA, 0x3E1FE1CC]
    assert normal.view(np.uint32).tolist() == [0x3F527463, 0xBEED1A7A, 0xBF597C4D]
    assert categorical.tolist() == [2, 3, 2, 0, 3, 1, 3, 2]


def test_uniform() -> None:
    x = eval_op("random_uniform", shape=[N], low=-3.0, high=5.0, seed=2)
    assert x.min() >= -3
    assert x.max() < 5
    counts, _ = np.histogram(x, 8, (-3, 5))
    np.testing.assert_allclose(counts, N / 8, rtol=0.08)
    np.testing.assert_array_equal(eval_op("random_uniform", shape=[2], low=2.0, high=2.0), [2, 2])
    x = eval_op("random_uniform", shape=[N], low=1.0, high=float(np.nextafter(f32(1), f32(2))))
    assert set(x.tolist()) == {1.0}


def test_normal() -> None:
    x = eval_op("random_normal", shape=[N], mean=2.0, stddev=3.0, seed=3).astype(np.float64)
    z = (x - 2) / 3
    moments = [np.mean(z**k) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.15)
    np.testing.assert_allclose(np.mean(np.abs(z) < 1), 0.6827, atol=0.01)
    np.testing.assert_array_equal(eval_op("random_normal", shape=[2], mean=2.0, stddev=0.0), [2, 2])


@pytest.mark.parametrize("prob", [0.0, 0.3, 1.0])
def test_bernoulli(prob: float) -> None:
    x = eval_op("random_bernoulli", shape=[N], prob=prob, seed=4)
    assert set(x.tolist()) <= {0.0, 1.0}
    np.testing.assert_allclose(x.mean(), prob, atol=0.01)


@pytest.mark.parametrize("mode", ["logits", "probs"])
def test_categorical(mode: str) -> None:
    weights = f32([[1, 0, 3, 0], [0, 2, 2, 0]])
    with np.errstate(divide="ignore"):
        x = np.log(weights) + 50 if mode == "logits" else weights
    drawn = eval_op("random_categorical", x=x, mode=mode, size=N, seed=5)
    assert drawn.shape == (2, N)
    for row, wanted in zip(drawn.astype(int), weights, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / N, wanted / 4, atol=0.015)
        assert not np.bincount(row, minlength=4)[wanted == 0].any()
