"""Element by element: functions of one tensor and of two, activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, case, close, f32, noise, same


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        ("abs", [-1, 0, 2], [1, 0, 2]),
        ("ceil", [-1.5, 0.2], [-1, 1]),
        ("floor", [-1.5, 0.2], [-2, 0]),
        ("round", [0.5, 1.5, -2.5, 2.6], [0, 2, -2, 3]),
        ("sign", [-3, 0, 5], [-1, 0, 1]),
        ("square", [-3, 0.5], [9, 0.25]),
        ("sqrt", [4, 0.25], [2, 0.5]),
        ("exp2", [-1, 3], [0.5, 8]),
    ],
)
def test_literal(op: str, x: list[float], expected: list[float]) -> None:
    same(op, f32(expected), x=f32(x))


@pytest.mark.parametrize(
    ("op", "function", "x"),
    [
        ("acos", math.acos, 0.3), ("asin", math.asin, 0.3), ("atan", math.atan, -2),
        ("atanh", math.atanh, 0.3), ("cos", math.cos, 2), ("cosh", math.cosh, 2),
        ("exp", math.exp, -2), ("sin", math.sin, 2), ("sinh", math.sinh, 2),
        ("tan", math.tan, 1), ("tanh", math.tanh, 0.7), ("erf", math.erf, 0.4),
    ],
)  # fmt: skip
def test_as_mathematics(op: str, function: Any, x: float) -> None:
    close(op, [function(x)], x=f32([x]))


def test_defaults() -> None:
    close("inverse", [1 / 2.0001, -1 / 0.9999], x=f32([2, -1]))
    close("log", [0, math.log(2)], x=f32([1, 2]))
    close("log", [math.log(1.5)], x=f32([1]), epsilon=0.5)
    close("rsqrt", [0.5, 1e6], x=f32([4, 0]))


@given(st.floats(-9, 9, width=32))
def test_erf_to_the_last_digits(x: float) -> None:
    found = float(eval_op("erf", x=f32([x]))[0])
    assert found == pytest.approx(math.erf(x), rel=3e-7, abs=2**-149)
    found = float(eval_op("erf", x=np.array([x]))[0])
    assert found == pytest.approx(math.erf(x), rel=1e-14, abs=2**-1073)


X, Y = f32([[1, -2], [3, 4]]), f32([[2], [-3]])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", [[3, 0], [0, 1]]),
        ("sub", [[-1, -4], [6, 7]]),
        ("mul", [[2, -4], [-9, -12]]),
        ("real_div", [[0.5, -1], [-1, f32(4) / f32(-3)]]),
        ("floor_div", [[0, -1], [-1, -2]]),
        ("mod", [[1, 0], [0, -2]]),
        ("maximum", [[2, 2], [3, 4]]),
        ("minimum", [[1, -2], [-3, -3]]),
        ("equal", [[False, False], [False, False]]),
        ("not_equal", [[True, True], [True, True]]),
        ("greater", [[False, False], [True, True]]),
        ("greater_equal", [[False, False], [True, True]]),
        ("less", [[True, True], [False, False]]),
        ("less_equal", [[True, True], [False, False]]),
    ],
)
def test_literal_and_broadcast(op: str, expected: Any) -> None:
    same(op, expected, x=X, y=Y)


@pytest.mark.parametrize("op", ["maximum", "minimum", "add", "mul"])
def test_nan_is_never_lost(op: str) -> None:
    same(op, [np.nan, np.nan], x=f32([np.nan, 1]), y=f32([1, np.nan]))


NUMBERS, DIVISORS = np.array([7, -7, 7, -7, 0], np.int32), np.array([2, 2, -2, 0, 0], np.int32)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("floor_div", [3, -4, -4, 0, 0]),
        ("mod", [1, 1, -1, 0, 0]),
        ("real_div", [3, -3, -3, 0, 0]),
    ],
)
def test_integers_divide(op: str, expected: list[int]) -> None:
    """By zero, they give zero: never an error, nor what a cast makes of infinity."""
    same(op, expected, x=NUMBERS, y=DIVISORS)


ROW = f32([-3, -0.5, 0, 0.5, 7])


@pytest.mark.drawn
@pytest.mark.slow
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


FAR = f32([-1e4, 1e4])
TOP = 2**31 - 1
ENDS, ZERO = f32([1, -1, 0]), f32(0)
BASES = np.array([2, -3, 2, 1, -1, -1, 0, 0], np.int32)
POWERS = np.array([3, 3, -1, -5, -2, -3, -1, 0], np.int32)


@pytest.mark.parametrize(
    "op", ["relu", "relu6", "sigmoid", "silu", "softplus", "softsign", "gelu", "softmax", "erf"]
)
def test_activations_keep_nan(op: str) -> None:
    assert np.isnan(eval_op(op, x=f32([np.nan]))).all()


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


X_BITS, Y_BITS = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
LITERALS = [
    case("logical_and", [True, False, False, False], x=X_BITS, y=Y_BITS),
    case("logical_or", [True, True, True, False], x=X_BITS, y=Y_BITS),
    case("logical_xor", [False, True, True, False], x=X_BITS, y=Y_BITS),
    case("inverse", [0.5, 2], x=f32([1.5, 0]), epsilon=0.5),
    case("rsqrt", [0.5], x=f32([3]), epsilon=1.0),
    case("erf", [0, 1, -1], x=f32([0, np.inf, -np.inf])),
    case("real_div", [np.inf, -np.inf, np.nan], x=ENDS, y=ZERO),
    case("floor_div", [np.inf, -np.inf, np.nan], x=ENDS, y=ZERO),
    case("mod", [np.nan] * 3, x=ENDS, y=ZERO),
    case("real_div", [TOP, -(2**30 - 1), 0], x=np.array([TOP, -TOP, TOP - 1], np.int32),
         y=np.array([1, 2, TOP], np.int32)),
    case("pow", [8, -27, 0, 1, 1, -1, 0, 1], x=BASES, y=POWERS),
    case("pow", [4, 9], x=np.array([2, -3], np.int32), y=2),
    case("sigmoid", [0, 1], x=FAR),
    case("silu", [0, 1e4], x=FAR),
    case("softplus", [0, 1e4], x=FAR),
    case("softmax", [0, 1], x=FAR),
    case("elu", [-1, 1e4], x=FAR, alpha=1.0),
    case("logical_not", [False, True], x=np.array([True, False])),
    case("clip", [-1, 0.5, 1, np.nan], x=f32([-9, 0.5, 9, np.nan]), alpha=-1.0, beta=1.0),
    case("threshold", [2, 3, np.nan], x=f32([1, 3, np.nan]), alpha=2.0),
    case("pow", [4, 0.125], x=f32([2, 2]), y=f32([2, -3])),
    case("select", [[1, 9], [9, 4]], cond=np.array([[1, 0], [0, 1]], bool), a=X, b=f32(9)),
    case("select", [[1, -2], [9, 9]], cond=np.array([[True], [False]]), a=X, b=9.0),
    case("select", [[5, 5], [6, 6]], cond=True, a=f32([[5], [6]]), b=f32([1, 2])),
    case("select", np.zeros((0, 2)), cond=np.zeros((0, 1), bool), a=X[:1], b=1.0),
    case("mul", [[-1, 2], [-3, -4]], x=X, y=-1.0),
    case("sub", [[0, 3], [-2, -3]], x=1.0, y=X),
    case("relu", [0, 0, 0, 0.5, 7], x=ROW),
    case("relu6", [0, 0, 0, 0.5, 6], x=ROW),
    case("leaky_relu", [-1.5, -0.25, 0, 0.5, 7], x=ROW, alpha=0.5),
    case("clamped_relu", [-1.5, -0.25, 0, 0.5, 1], x=ROW, alpha=0.5, beta=1.0),
    case("sigmoid_hard", [0, 0.25, 0.5, 0.75, 1], x=ROW, alpha=0.5, beta=0.5),
    case("softsign", [-0.75, -1 / f32(3), 0, 1 / f32(3), 0.875], x=ROW),
    case("thresholded_relu", [0, 0, 0, 0.5, 7], x=ROW, alpha=0.5),
    case("thresholded_relu", [np.nan, 0], x=f32([np.nan, -2]), alpha=-1.0),
    case("linear_activation", [-3, 2, 3, 4, 17], x=ROW, alpha=2.0, beta=3.0),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)


def test_gelu_keeps_its_digits_far_below_zero() -> None:
    """1 + erf would cancel in float32: x/2 erfc(-x / sqrt 2) is the same without."""
    exact = -5 / 2 * math.erfc(5 / math.sqrt(2))
    assert eval_op("gelu", x=f32([-5]))[0] == pytest.approx(exact, rel=1e-6)
    x = np.linspace(-5, 5, 101)
    expected = [v / 2 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(eval_op("gelu", x=x), expected, rtol=1e-8, atol=1e-15)
