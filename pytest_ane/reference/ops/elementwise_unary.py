"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.reference.registry import register

_SIMPLE = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "round": np.rint,
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _register(name: str, function: Any) -> None:
    @register(name)
    def compute(x: Any) -> Any:
        return function(x)


for _name, _function in _SIMPLE.items():
    _register(_name, _function)


@register("inverse")
def inverse(x: Any, epsilon: float = 1e-4) -> Any:
    """1 / (x + epsilon)."""
    return np.reciprocal(x + np.float32(epsilon))


@register("log")
def log(x: Any, epsilon: float = 1e-45) -> Any:
    """The natural logarithm of `x + epsilon`."""
    return np.log(x + np.float32(epsilon))


@register("rsqrt")
def rsqrt(x: Any, epsilon: float = 1e-12) -> Any:
    """1 / sqrt(x + epsilon)."""
    return np.reciprocal(np.sqrt(x + np.float32(epsilon)))


@register("clip")
def clip(x: Any, alpha: float, beta: float) -> Any:
    """min(max(x, alpha), beta)."""
    return np.clip(x, alpha, beta)


@register("threshold")
def threshold(x: Any, alpha: float) -> Any:
    """max(x, alpha)."""
    return np.maximum(x, alpha)


@register("erf")
def erf(x: Any) -> Any:
    """2/sqrt(pi) times the integral of exp(-t^2) from 0 to x; near 0 too, to float32's last place.

    erfc by a Chebyshev fit (Press et al., Numerical Recipes, 2nd edition, section 6.2), 1.2e-7 off
    at most, in float64; below 1 the Maclaurin series, as 1 - erfc would cancel there.
    """
    wide = np.asarray(x, np.float64)
    z = np.abs(wide)
    t = 1 / (1 + z / 2)
    tail = t * np.exp(-z * z + np.polynomial.polynomial.polyval(t, _ERFC))
    near = np.minimum(z, 1)
    series = near * np.polynomial.polynomial.polyval(near * near, _SERIES)
    return np.copysign(np.where(z < 1, series, 1 - tail), wide)


_ERFC = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
]  # fmt: skip
# Coefficients of x^(2n + 1) in erf: 2/sqrt(pi) (-1)^n / (n! (2n + 1)).
_SERIES = [
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(13)
]
