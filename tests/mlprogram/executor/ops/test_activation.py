"""Activations: literal values, and torch's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, close, f32, noise, same

X = f32([-3, -0.5, 0, 0.5, 7])


def test_rectifiers() -> None:
    same("relu", [0, 0, 0, 0.5, 7], x=X)
    same("relu6", [0, 0, 0, 0.5, 6], x=X)
    same("leaky_relu", [-1.5, -0.25, 0, 0.5, 7], x=X, alpha=0.5)
    same("clamped_relu", [-1.5, -0.25, 0, 0.5, 1], x=X, alpha=0.5, beta=1.0)
    same("sigmoid_hard", [0, 0.25, 0.5, 0.75, 1], x=X, alpha=0.5, beta=0.5)


def test_softsign() -> None:
    same("softsign", [-0.75, -1 / f32(3), 0, 1 / f32(3), 0.875], x=X)


@pytest.mark.parametrize(
    ("op", "parameters", "torch_function"),
    [
        ("sigmoid", {}, torch.sigmoid),
        ("silu", {}, F.silu),
        ("elu", {"alpha": 1.5}, lambda x: F.elu(x, 1.5)),
        ("softplus", {}, lambda x: F.softplus(x, threshold=1e9)),
        ("scaled_tanh", {"alpha": 2.0, "beta": 0.5}, lambda x: 2 * torch.tanh(0.5 * x)),
        ("gelu", {}, F.gelu),
        ("gelu", {"mode": "EXACT"}, F.gelu),
        ("gelu", {"mode": "TANH_APPROXIMATION"}, lambda x: F.gelu(x, approximate="tanh")),
        ("gelu", {"mode": "SIGMOID_APPROXIMATION"}, lambda x: x * torch.sigmoid(1.702 * x)),
        ("softmax", {"axis": 0}, lambda x: torch.softmax(x, 0)),
        ("softmax", {}, lambda x: torch.softmax(x, -1)),
    ],
)
@given(x=arrays())
def test_as_torch(op: str, parameters: dict[str, Any], torch_function: Any, x: Any) -> None:
    close(op, torch_function(torch.from_numpy(x)), x=x, **parameters)


def test_nothing_overflows_on_the_way() -> None:
    far = f32([-1e4, 1e4])
    same("sigmoid", [0, 1], x=far)
    same("silu", [0, 1e4], x=far)
    same("softplus", [0, 1e4], x=far)
    same("softmax", [0, 1], x=far)
    same("elu", [-1, 1e4], x=far, alpha=1.0)


@pytest.mark.parametrize(
    "op", ["relu", "relu6", "sigmoid", "silu", "softplus", "softsign", "gelu", "softmax"]
)
def test_nan_is_never_lost(op: str) -> None:
    assert np.isnan(eval_op(op, x=f32([np.nan]))).all()


def test_a_softmax_adds_up_to_one() -> None:
    sums = eval_op("softmax", x=f32([[1, 2, -np.inf], [5, 5, 5]])).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, rtol=1e-6)


def test_gelu_far_below_zero_keeps_its_digits() -> None:
    """1 + erf would cancel in float32: x/2 erfc(-x / sqrt 2) is the same without."""
    exact = -5 / 2 * math.erfc(5 / math.sqrt(2))
    assert eval_op("gelu", x=f32([-5]))[0] == pytest.approx(exact, rel=1e-6)


def test_an_unknown_gelu() -> None:
    with pytest.raises(Exception, match="unknown gelu mode 'HALF'"):
        eval_op("gelu", x=X, mode="HALF")


def test_thresholded_relu() -> None:
    same("thresholded_relu", [0, 0, 0, 0.5, 7], x=X, alpha=0.5)
    same("thresholded_relu", [np.nan, 0], x=f32([np.nan, -2]), alpha=-1.0)


def test_linear_activation() -> None:
    same("linear_activation", [-3, 2, 3, 4, 17], x=X, alpha=2.0, beta=3.0)


@pytest.mark.parametrize("shape", [(1, 3, 2), (1, 3, 1, 2), (1, 3, 1, 1, 2)])
def test_prelu(shape: tuple[int, ...]) -> None:
    x = f32([-1, 3, -1, 2, 4, -5]).reshape(shape)
    expected = f32([-1, 3, -2, 2, 4, -15]).reshape(shape)
    same("prelu", expected, x=x, alpha=f32([1, 2, 3]))


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (1, 3, 2, 2, 2)])
def test_softplus_parametric(shape: tuple[int, ...]) -> None:
    x, alpha, beta = noise(*shape), noise(3, seed=1), noise(3, seed=2)
    a, b = (v.reshape(-1, *[1] * (len(shape) - 2)) for v in (alpha, beta))
    close("softplus_parametric", a * np.log(1 + np.exp(b * x)), x=x, alpha=alpha, beta=beta)
    same("softplus_parametric", [[[2e4]]], x=f32([[[1e4]]]), alpha=f32([1]), beta=f32([2]))


@pytest.mark.parametrize("alpha", [f32([1, 2]), f32([[1, 2, 3]]), f32(1)])
def test_numbers_by_channel_that_do_not_fit(alpha: Any) -> None:
    with pytest.raises(Exception, match="is not a number for each channel"):
        eval_op("prelu", x=noise(1, 3, 2), alpha=alpha)


EVERY: dict[str, dict[str, Any]] = {
    "clamped_relu": {"alpha": 0.5, "beta": 1.0}, "elu": {"alpha": 1.0}, "gelu": {},
    "leaky_relu": {"alpha": 0.5}, "linear_activation": {"alpha": 0.5, "beta": 1.0}, "relu": {},
    "relu6": {}, "scaled_tanh": {"alpha": 0.5, "beta": 1.0}, "sigmoid": {}, "silu": {},
    "sigmoid_hard": {}, "softplus": {}, "softsign": {}, "thresholded_relu": {"alpha": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(EVERY))
def test_float64_stays_and_rank_zero_too(op: str) -> None:
    found = eval_op(op, x=np.float64(0.3) * np.ones(()), **EVERY[op])
    assert np.shape(found) == ()
    assert np.asarray(found).dtype == np.float64


def test_gelu_in_float64() -> None:
    x = np.linspace(-5, 5, 101)
    expected = [v / 2 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(eval_op("gelu", x=x), expected, rtol=1e-8, atol=1e-15)
