"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.elementwise import error_function
from pytest_ane.mlprogram.executor.registry import register, register_all


@register("sigmoid")
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); where exp overflows to infinity the quotient is 0, as it should be."""
    return 1 / (1 + np.exp(-x))


_FORMULAS: dict[str, Any] = {
    "clamped_relu": lambda x, alpha, beta: np.minimum(np.where(x >= 0, x, alpha * x), beta),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "linear_activation": lambda x, alpha, beta: alpha * x + beta,
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x * sigmoid(x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    # NaN stays.
    "thresholded_relu": lambda x, alpha: np.where(x < alpha, np.zeros_like(x), x),
}
register_all(_FORMULAS)


@register("relu", moves=True)
def relu(x: Any) -> Any:
    """max(x, 0)."""
    return np.maximum(x, 0)


@register("prelu")
def prelu(x: Any, alpha: Any) -> Any:
    """`x [B, C, ...]` where x > 0, else `alpha x`, with an `alpha [C]` for each channel.

    Raises:
        ValueError: alpha has another length.
    """
    return np.where(x > 0, x, _by_channel(alpha, x, "alpha") * x)


@register("softplus")
def softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return np.logaddexp(x, np.float32(0))


@register("softplus_parametric")
def softplus_parametric(x: Any, alpha: Any, beta: Any) -> Any:
    """`alpha log(1 + exp(beta x))`, alpha and beta `[C]` by channel of `x [B, C, ...]`.

    Raises:
        ValueError: alpha or beta has another length.
    """
    return _by_channel(alpha, x, "alpha") * softplus(_by_channel(beta, x, "beta") * x)


def _by_channel(values: Any, x: Any, name: str) -> Any:
    """`[C]` shaped to be broadcast with `x [B, C, ...]`."""
    if x.ndim < 2 or np.shape(values) != x.shape[1:2]:
        raise ValueError(f"{name} {np.shape(values)} is not a number for each channel of {x.shape}")
    return np.reshape(values, (-1,) + (1,) * (x.ndim - 2))


@register("sigmoid_hard")
def sigmoid_hard(x: Any, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """min(max(alpha x + beta, 0), 1)."""
    return np.clip(alpha * x + beta, 0, 1)


@register("scaled_tanh")
def scaled_tanh(x: Any, alpha: float = 1.0, beta: float = 1.0) -> Any:
    """`alpha tanh(beta x)`."""
    return alpha * np.tanh(beta * x)


@register("gelu")
def gelu(x: Any, mode: str = "EXACT") -> Any:
    """`x` times the normal distribution function of x, exact or by one of MIL's approximations."""
    if mode == "EXACT":
        x = np.asarray(x)
        z = x.astype(np.float64) / math.sqrt(2)  # As 1 + erf cancels far below 0.
        return 0.5 * x * (1 + error_function(z, exact=x.dtype == np.float64))
    if mode == "TANH_APPROXIMATION":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if mode == "SIGMOID_APPROXIMATION":
        return x * sigmoid(1.702 * x)
    raise ValueError(f"unknown gelu mode {mode!r}")


@register("softmax")
def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) / sum of exp(x) along an axis, shifted by the maximum."""
    shifted = np.exp(x - np.maximum.reduce(x, axis=axis, keepdims=True))
    return shifted / np.add.reduce(shifted, axis=axis, keepdims=True)
