"""Functions of one tensor, or of two that are broadcast, element by element; activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register, register_all


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); where exp overflows to infinity the quotient is 0, as it should be."""
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    return np.logaddexp(x, np.float32(0))


def by_channel(values: Any, x: Any, name: str) -> Any:
    """`[C]` shaped to be broadcast with `x [B, C, ...]`."""
    if x.ndim < 2 or np.shape(values) != x.shape[1:2]:
        raise ValueError(f"{name} {np.shape(values)} is not a number for each channel of {x.shape}")
    return np.reshape(values, (-1,) + (1,) * (x.ndim - 2))


_UNARY: dict[str, Any] = {
    **{name: getattr(np, name) for name in (
        "abs", "ceil", "cos", "cosh", "exp", "exp2", "floor", "logical_not", "sign", "sin", "sinh",
        "sqrt", "square", "tan", "tanh",
    )},
    "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "atanh": np.arctanh, "round": np.rint,
}  # fmt: skip
_BINARY: dict[str, Any] = {
    **{name: getattr(np, name) for name in (
        "add", "equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
        "logical_or", "logical_xor", "maximum", "minimum", "mod", "not_equal",
    )},
    "floor_div": np.floor_divide, "mul": np.multiply, "sub": np.subtract,
}  # fmt: skip
FORMULAS: dict[str, Any] = {
    "clamped_relu": lambda x, alpha, beta: np.minimum(np.where(x >= 0, x, alpha * x), beta),
    "clip": lambda x, alpha, beta: np.minimum(np.maximum(x, alpha), beta),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "inverse": lambda x, epsilon=1e-4: np.reciprocal(x + np.float32(epsilon)),
    "leaky_relu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "linear_activation": lambda x, alpha, beta: alpha * x + beta,
    "log": lambda x, epsilon=1e-45: np.log(x + np.float32(epsilon)),
    # With an `alpha [C]`, and a `beta`, for each channel.
    "prelu": lambda x, alpha: np.where(x > 0, x, by_channel(alpha, x, "alpha") * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "rsqrt": lambda x, epsilon=1e-12: np.reciprocal(np.sqrt(x + np.float32(epsilon))),
    "scaled_tanh": lambda x, alpha=1.0, beta=1.0: alpha * np.tanh(beta * x),
    "select": lambda cond, a, b: np.where(cond, a, b),
    "sigmoid": sigmoid,
    "sigmoid_hard": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "silu": lambda x: x * sigmoid(x),
    "softplus": softplus,
    "softplus_parametric": lambda x, alpha, beta: (
        by_channel(alpha, x, "alpha") * softplus(by_channel(beta, x, "beta") * x)
    ),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "threshold": lambda x, alpha: np.maximum(x, alpha),
    # NaN stays.
    "thresholded_relu": lambda x, alpha: np.where(x < alpha, np.zeros_like(x), x),
}
BROADCASTING = frozenset((*_BINARY, "pow", "real_div", "select"))
"""Operations whose result has the shape that their operands broadcast to."""
_CHOOSE = frozenset(("abs", "maximum", "minimum", "relu", "select"))
"""Functions whose results are among their operands, or 0; an absolute value is but for its sign."""


def _of_one(function: Any) -> Any:
    return lambda x: function(x)


def _of_two(function: Any) -> Any:
    return lambda x, y: function(x, y)


register_all({name: _of_one(function) for name, function in _UNARY.items()}, _CHOOSE)
register_all({name: _of_two(function) for name, function in _BINARY.items()}, _CHOOSE)
register_all(FORMULAS, _CHOOSE)


@register("real_div")
def real_div(x: Any, y: Any) -> Any:
    """`x / y`; integers' quotients are cut off towards zero, and by zero they are 0."""
    quotient = np.true_divide(x, y)
    return np.where(np.equal(y, 0), 0, np.trunc(quotient)) if _integers(x, y) else quotient


@register("pow")
def pow_(x: Any, y: Any) -> Any:
    """`x` to the power of `y`; integers' are cut off towards zero, and 0 has none below 0."""
    if not _integers(x, y):
        return np.power(x, y)
    # To a negative power, 1 and -1 are what they are to its absolute value, and all others cut off.
    whole = np.greater_equal(y, 0) | np.equal(np.abs(x), 1)
    return np.where(whole, np.power(x, np.abs(y)), 0)


def _integers(x: Any, y: Any) -> bool:
    return np.asarray(x).dtype.kind in "iu" and np.asarray(y).dtype.kind in "iu"


@register("erf")
def erf(x: Any) -> Any:
    """2/sqrt(pi) times the integral of exp(-t^2) from 0 to x, of float64 accuracy."""
    import torch  # numpy has none, and the standard library's takes one number: 15 times as long.

    numbers = np.require(x, np.float64, ["C", "W"])
    return torch.erf(torch.from_numpy(numbers).reshape(-1)).numpy().reshape(numbers.shape)


@register("gelu")
def gelu(x: Any, mode: str = "EXACT") -> Any:
    """`x` times the normal distribution function of x, exact or by one of MIL's approximations."""
    if mode == "EXACT":
        x = np.asarray(x)
        z = x.astype(np.float64) / math.sqrt(2)  # As 1 + erf cancels far below 0.
        return 0.5 * x * (1 + erf(z))
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
