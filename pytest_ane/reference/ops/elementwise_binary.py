"""Functions of two broadcast tensors, element by element, and select."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register

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
    "pow": np.power,
    "sub": np.subtract,
}


def _register(name: str, function: Any) -> None:
    @register(name)
    def compute(x: Any, y: Any) -> Any:
        return function(x, y)


for _name, _function in _SIMPLE.items():
    _register(_name, _function)


@register("real_div")
def real_div(x: Any, y: Any) -> Any:
    """`x / y`; integers divide as floats and are cut off towards zero by their type."""
    return np.true_divide(x, y)


@register("select")
def select(cond: Any, a: Any, b: Any) -> Any:
    """`a` where cond, else `b`."""
    return np.where(cond, a, b)
