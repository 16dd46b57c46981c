"""Random tensors: the same numbers everywhere, of the right distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import eval_op
from pytest_ane.mlprogram.executor.ops import random
from tests.mlprogram.executor.ops.oracle import f32

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
    assert draw() == draw(seed=-1) == draw(seed=None) == draw(seed=random.DEFAULT_SEED)
    assert draw(seed=-2) == draw(seed=-2) != draw()


def test_the_numbers_themselves() -> None:
    """Written down, so that another machine or version of numpy that differs is noticed."""
    uniform = eval_op("random_uniform", shape=[3], seed=1)
    normal = eval_op("random_normal", shape=[3], seed=1)
    categorical = eval_op("random_categorical", x=f32([0, 1, 2, 3]), size=8, seed=1)
    assert uniform.view(np.uint32).tolist() == [0x3E9B6D45, 0x3F5944FA, 0x3E1FE1CC]
    assert normal.view(np.uint32).tolist() == [0xBEED1A7A, 0x3F527463, 0x3F521318]
    assert categorical.tolist() == [2, 3, 2, 0, 3, 1, 3, 2]


def test_uniform() -> None:
    x = eval_op("random_uniform", shape=[N], low=-3.0, high=5.0, seed=2)
    assert x.min() >= -3
    assert x.max() < 5
    counts, _ = np.histogram(x, 8, (-3, 5))
    np.testing.assert_allclose(counts, N / 8, rtol=0.08)
    np.testing.assert_array_equal(eval_op("random_uniform", shape=[2], low=2.0, high=2.0), [2, 2])


def test_rounding_does_not_reach_the_end() -> None:
    x = eval_op("random_uniform", shape=[N], low=1.0, high=float(np.nextafter(f32(1), f32(2))))
    assert set(x.tolist()) == {1.0}


def test_normal() -> None:
    x = eval_op("random_normal", shape=[N], mean=2.0, stddev=3.0, seed=3).astype(np.float64)
    z = (x - 2) / 3
    moments = [np.mean(z**k) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.15)
    np.testing.assert_allclose(np.mean(np.abs(z) < 1), 0.6827, atol=0.01)
    np.testing.assert_array_equal(eval_op("random_normal", shape=[2], mean=2.0, stddev=0.0), [2, 2])


def test_logarithm_without_a_library() -> None:
    x = np.concatenate([np.geomspace(1e-300, 1, 5000), np.linspace(0.5, 2, 5000)])
    np.testing.assert_allclose(random._log(x), np.log(x), rtol=3e-16, atol=1e-16)


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


def test_shapes() -> None:
    assert eval_op("random_categorical", x=np.zeros((2, 3, 4), np.float32)).shape == (2, 3, 1)
    for op in ("random_uniform", "random_normal", "random_bernoulli"):
        assert eval_op(op, shape=[2, 0]).shape == (2, 0)
        assert eval_op(op, shape=np.array([], np.int32)).shape == ()
        assert eval_op(op, shape=[3]).dtype == np.float32


@pytest.mark.parametrize(
    ("op", "parameters"),
    [
        ("random_uniform", {"shape": [1], "low": 1.0, "high": 0.0}),
        ("random_uniform", {"shape": [-1]}),
        ("random_normal", {"shape": [1], "stddev": -1.0}),
        ("random_bernoulli", {"shape": [1], "prob": 1.5}),
        ("random_categorical", {"x": f32([1]), "mode": "odds"}),
        ("random_categorical", {"x": f32([1, np.nan])}),
        ("random_categorical", {"x": f32([-np.inf, -np.inf])}),
        ("random_categorical", {"x": f32([0, 0]), "mode": "probs"}),
        ("random_categorical", {"x": f32([2, -1]), "mode": "probs"}),
    ],
)
def test_parameters_that_give_no_distribution(op: str, parameters: Any) -> None:
    with pytest.raises(Exception, match=f"{op} fails"):
        eval_op(op, **parameters)
