"""Which function computes which operation, by name and opset."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

from pytest_ane.core.errors import ExecutionError

Compute = Callable[..., Any]
FAILURES = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What numpy and the operations raise on operands that do not fit."""

F = TypeVar("F", bound=Compute)

# Opsets as functions name them (`CoreML8`) and as deployment targets name them (`iOS18`).
_OPSETS = {"iOS15": 5, "iOS16": 6, "iOS17": 7, "iOS18": 8, "iOS26": 9}


@dataclass(frozen=True)
class Implementation:
    """An operation's function from an opset on.

    Attributes:
        moves: all values of its results are among its operands', so they need no rounding.
        special: what `specialize` registered, by names of the varying parameters.
    """

    name: str
    opset: int
    compute: Compute
    moves: bool
    special: dict[tuple[str, ...], Compute] = field(default_factory=dict)

    def specialized(self, varying: Collection[str], bound: Mapping[str, Any]) -> Prepared | None:
        """The operation with its constant parameters worked out; None where none is registered.

        What fails on its constants is left to the operation itself, whose message says how.
        """
        for names, prepare in self.special.items():
            if set(names) == set(varying):
                try:
                    function = prepare(**bound)
                except FAILURES:
                    return None
                return None if function is None else Prepared(names, function)
        return None


class Prepared(NamedTuple):
    """A function of the varying parameters, in this order."""

    names: tuple[str, ...]
    function: Compute


_REGISTRY: dict[str, list[Implementation]] = {}


def register(*names: str, opset: str = "iOS15", moves: bool = False) -> Callable[[F], F]:
    """Register a function as operations of these names, from an opset on.

    The function takes the operation's parameters by MIL's names: tensors as arrays (fp16 ones as
    float32), scalars as Python numbers, texts as str, `values` as a tuple; it returns an array, or
    a tuple of arrays for several outputs. Parameters left out must have MIL's default.

    Raises:
        ValueError: the opset is unknown.
    """
    if opset not in _OPSETS:
        raise ValueError(f"unknown opset {opset!r}; there are: {', '.join(_OPSETS)}")

    def decorate(function: F) -> F:
        for name in names:
            entry = Implementation(name, _OPSETS[opset], function, moves)
            versions = [v for v in _REGISTRY.get(name, []) if v.opset != entry.opset]
            _REGISTRY[name] = sorted([*versions, entry], key=lambda v: v.opset)
        return function

    return decorate


def specialize(
    *names: str, opset: str = "iOS15", varying: Sequence[str] = ("x",)
) -> Callable[[F], F]:
    """Register what prepares operations of which only the parameters `varying` are computed.

    It is called once, with the constant parameters, and returns a function of the others, by
    position, that gives what the operation gives; or None where it has no better way. Whatever
    follows from constants alone is so worked out once.
    """

    def decorate(prepare: F) -> F:
        for name in names:
            for entry in _REGISTRY[name]:
                if entry.opset == _OPSETS[opset]:
                    entry.special[tuple(varying)] = prepare
        return prepare

    return decorate


def lookup(name: str, opset: str, where: str = "") -> Implementation:
    """The newest implementation that a function's opset (`CoreML8` or `iOS18`) allows.

    Raises:
        ExecutionError: there is none; names what exists and how to add one.
    """
    _load_ops()
    level = _level(opset, where)
    fitting = [v for v in _REGISTRY.get(name, []) if v.opset <= level]
    if not fitting:
        raise ExecutionError(
            f"{where}operation {name!r} is not implemented for opset {opset}; implemented are: "
            f"{', '.join(names())}. Add it with @pytest_ane.reference.register({name!r})."
        )
    return fitting[-1]


def _level(opset: str, where: str) -> int:
    """An opset's place among the others: 8 for `CoreML8` and `iOS18`."""
    if opset in _OPSETS:
        return _OPSETS[opset]
    if (found := re.fullmatch(r"CoreML(\d{1,3})", str(opset))) is None:
        raise ExecutionError(f"{where}unknown opset {opset!r}; there are: {', '.join(_OPSETS)}.")
    return int(found[1])


def names() -> list[str]:
    """Names of all implemented operations, sorted."""
    _load_ops()
    return sorted(_REGISTRY)


@cache
def _load_ops() -> None:
    """Import every module of `ops`; their decorators do the rest."""
    from pytest_ane.reference import ops

    for module in iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")
