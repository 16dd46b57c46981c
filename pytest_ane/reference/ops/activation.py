"""Activation functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.ops.elementwise_unary import erf
from pytest_ane.reference.registry import register


@register("sigmoid")
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), from the side that does not overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


@register("silu")
def silu(x: Any) -> Any:
    """`x sigmoid(x)`."""
    return x * sigmoid(x)


@register("relu")
def relu(x: Any) -> Any:
    """max(x, 0)."""
    return np.maximum(x, 0)


@register("relu6")
def relu6(x: Any) -> Any:
    """min(max(x, 0), 6)."""
    return np.clip(x, 0, 6)


@register("clamped_relu")
def clamped_relu(x: Any, alpha: float, beta: float) -> Any:
    """min(x, beta) where x >= 0, else min(alpha x, beta)."""
    return np.minimum(np.where(x >= 0, x, alpha * x), beta)


@register("leaky_relu")
def leaky_relu(x: Any, alpha: float) -> Any:
    """`x` where x >= 0, else `alpha x`."""
    return np.where(x >= 0, x, alpha * x)


@register("elu")
def elu(x: Any, alpha: float) -> Any:
    """`x` where x > 0, else `alpha (exp(x) - 1)`."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@register("softplus")
def softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return np.logaddexp(x, np.float32(0))


@register("softsign")
def softsign(x: Any) -> Any:
    """`x / (1 + |x|)`."""
    return x / (1 + np.abs(x))


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
        return 0.5 * x * (1 + erf(x / np.sqrt(2)))
    if mode == "TANH_APPROXIMATION":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if mode == "SIGMOID_APPROXIMATION":
        return x * sigmoid(1.702 * x)
    raise ValueError(f"unknown gelu mode {mode!r}")


@register("softmax")
def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) / sum of exp(x) along an axis, shifted by the maximum."""
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)
