"""Functions of two broadcast tensors, element by element, and select."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register, specialize

_SIMPLE = {
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


_CHOOSE = frozenset(("maximum", "minimum"))


def _register(name: str, function: Any) -> None:
    @register(name, moves=name in _CHOOSE)
    def compute(x: Any, y: Any) -> Any:
        return function(x, y)

    specialize(name, varying=("x", "y"))(lambda: function)
    specialize(name)(lambda y: lambda x: function(x, y))
    specialize(name, varying=("y",))(lambda x: lambda y: function(x, y))


for _name, _function in _SIMPLE.items():
    _register(_name, _function)


@register("real_div")
def real_div(x: Any, y: Any) -> Any:
    """`x / y`; integers' quotients are cut off towards zero, and by zero they are 0."""
    quotient = np.true_divide(x, y)
    return np.where(np.equal(y, 0), 0, np.trunc(quotient)) if _integers(x, y) else quotient


@specialize("real_div", varying=("x", "y"))
def _real_div() -> Any:
    return lambda x, y: np.true_divide(x, y) if x.dtype.kind == "f" else real_div(x, y)


@register("pow")
def pow_(x: Any, y: Any) -> Any:
    """`x` to the power of `y`; integers' are cut off towards zero, and 0 has none below 0."""
    if not _integers(x, y):
        return np.power(x, y)
    # To a negative power, 1 and -1 are what they are to its absolute value, and all others cut off.
    whole = np.greater_equal(y, 0) | np.equal(np.abs(x), 1)
    return np.where(whole, np.power(x, np.abs(y)), 0)


def _integers(x: Any, y: Any) -> bool:
    return all(np.asarray(a).dtype.kind in "iu" for a in (x, y))


@register("select", moves=True)
def select(cond: Any, a: Any, b: Any) -> Any:
    """`a` where cond, else `b`."""
    return np.where(cond, a, b)
