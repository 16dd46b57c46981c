"""Functions of one tensor, or of two that are broadcast, element by element; and select."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev
from numpy.polynomial.polynomial import polyval

from pytest_ane.mlprogram.executor.registry import register, register_all

_UNARY: dict[str, Any] = {
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
_BINARY: dict[str, Any] = {
    "add": np.add,
    "equal": np.equal,
    "floor_div": np.floor_divide,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.mod,
    "mul": np.multiply,
    "not_equal": np.not_equal,
    "sub": np.subtract,
}
_FORMULAS: dict[str, Any] = {
    "clip": lambda x, alpha, beta: np.minimum(np.maximum(x, alpha), beta),
    "inverse": lambda x, epsilon=1e-4: np.reciprocal(x + np.float32(epsilon)),
    "log": lambda x, epsilon=1e-45: np.log(x + np.float32(epsilon)),
    "rsqrt": lambda x, epsilon=1e-12: np.reciprocal(np.sqrt(x + np.float32(epsilon))),
    "select": lambda cond, a, b: np.where(cond, a, b),
    "threshold": lambda x, alpha: np.maximum(x, alpha),
}
BROADCASTING = frozenset((*_BINARY, "pow", "real_div", "select"))
"""Operations whose result has the shape that their operands broadcast to."""
_CHOOSE = frozenset(("abs", "maximum", "minimum", "select"))
"""Functions whose results are among their operands; the sign apart, so is an absolute value."""


def _of_one(function: Any) -> Any:
    return lambda x: function(x)


def _of_two(function: Any) -> Any:
    return lambda x, y: function(x, y)


register_all({name: _of_one(function) for name, function in _UNARY.items()}, _CHOOSE)
register_all({name: _of_two(function) for name, function in _BINARY.items()}, _CHOOSE)
register_all(_FORMULAS, _CHOOSE)


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
    """2/sqrt(pi) times the integral of exp(-t^2) from 0 to x, to the last places of x's type."""
    x = np.asarray(x)
    return error_function(x.astype(np.float64), exact=x.dtype == np.float64)


def error_function(x: Any, exact: bool) -> Any:
    """`erf` of float64 numbers: 3e-15 off at most where exact, else 1.2e-7 in half the time.

    Below 1 it is the Maclaurin series, as 1 - erfc would cancel there.
    """
    z = np.abs(x)
    near = np.minimum(z, 1)
    series = near * polyval(near * near, _SERIES if exact else _SERIES[:13])
    return np.copysign(np.where(z < 1, series, 1 - (_erfc if exact else _quick_erfc)(z)), x)


def _quick_erfc(z: Any) -> Any:
    """A Chebyshev fit from Press et al., Numerical Recipes, 2nd edition, section 6.2."""
    t = 1 / (1 + z / 2)
    return t * np.exp(-z * z + polyval(t, _ERFC))


def _erfc(z: Any) -> Any:
    """From 1 on, by interpolation of exp(z^2) erfc(z); at 6, 1 - erfc is 1."""
    far = np.clip(z, 1, 6)
    return np.exp(-far * far) * _SCALED_ERFC(far)


_ERFC = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
]  # fmt: skip
# Coefficients of x^(2n + 1) in erf: 2/sqrt(pi) (-1)^n / (n! (2n + 1)).
_SERIES = [
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(20)
]
_SCALED_ERFC = Chebyshev.interpolate(
    lambda nodes: np.array([math.exp(z * z) * math.erfc(z) for z in nodes]), 24, domain=[1, 6]
)
