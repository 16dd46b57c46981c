"""Which function computes which operation, by name and opset."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from pytest_ane.mlprogram.errors import ExecutionError

FAILURES = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    Warning,
)  # fmt: skip
"""What numpy and the operations raise on operands that do not fit; warnings may be errors."""

F = TypeVar("F", bound=Callable[..., Any])

# Opsets as functions name them (`CoreML8`) and as deployment targets name them (`iOS18`), in order.
_OPSETS = {"iOS15": 5, "iOS16": 6, "iOS17": 7, "iOS18": 8, "iOS26": 9}


@dataclass(frozen=True)
class Implementation:
    """An operation's function; one that only `moves` values needs no rounding."""

    compute: Callable[..., Any]
    moves: bool


_REGISTRY: dict[tuple[str, int], Implementation] = {}
"""By name, and the opset from which it is so."""


def register(*names: str, opset: str = "iOS15", moves: bool = False) -> Callable[[F], F]:
    """Register a function as operations of these names, from an opset on.

    It takes the operation's parameters by MIL's names: tensors as arrays (fp16 ones as float32),
    scalars as Python numbers, texts as str, `values` as a tuple; it returns an array, or a tuple of
    arrays for several outputs. Parameters left out must have MIL's default.
    """
    if opset not in _OPSETS:
        raise ValueError(f"unknown opset {opset!r}; there are: {', '.join(_OPSETS)}")

    def decorate(function: F) -> F:
        for name in names:
            _REGISTRY[name, _OPSETS[opset]] = Implementation(function, moves)
        return function

    return decorate


def register_all(functions: Mapping[str, Callable[..., Any]], moves: Collection[str] = ()) -> None:
    """Register a table of functions by operation; those named in `moves` with `moves=True`."""
    for name, function in functions.items():
        register(name, moves=name in moves)(function)


def lookup(name: str, opset: str, where: str = "") -> Implementation:
    """The newest implementation that a function's opset (`CoreML8` or `iOS18`) allows."""
    _load_ops()
    level = _level(opset, where)
    fitting = [n for n in _OPSETS.values() if n <= level and (name, n) in _REGISTRY]
    if not fitting:
        raise ExecutionError(
            f"{where}operation {name!r} is not implemented for opset {opset}; implemented are: "
            f"{', '.join(names())}. Add it with @pytest_ane.mlprogram.executor.register({name!r})."
        )
    return _REGISTRY[name, fitting[-1]]


def _level(opset: str, where: str) -> int:
    """An opset's place among the others: 8 for `CoreML8` and `iOS18`."""
    if opset in _OPSETS:
        return _OPSETS[opset]
    if (match := re.fullmatch(r"CoreML(\d{1,3})", str(opset))) is None:
        raise ExecutionError(f"{where}unknown opset {opset!r}; there are: {', '.join(_OPSETS)}.")
    return int(match[1])


def names() -> list[str]:
    """Names of all implemented operations, user-registered ones included, sorted."""
    _load_ops()
    return sorted({name for name, _ in _REGISTRY})


@cache
def _load_ops() -> None:
    from pytest_ane.mlprogram.executor import ops

    for module in iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")
