"""Bytes of weights as they lie in the file, by the operation that reads them first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from pytest_ane.mil import byte_size
from pytest_ane.mil.records import (
    Argument,
    Blob,
    DType,
    Operation,
    Ref,
    TensorType,
    Value,
    ValueType,
)


class Size(NamedTuple):
    """Of a weight: bytes as stored, and elements once decompressed."""

    stored: int
    elements: int


_Leaves = dict[object, Size]
"""Sizes by what tells stored constants apart."""


class Stored:
    """Which stored constants the values of a program come from, filled in program order."""

    def __init__(self) -> None:
        self._leaves: dict[str, _Leaves] = {}
        self._read: set[object] = set()

    def fold(self, op: Operation) -> None:
        """Note an operation of constants alone, such as one that decompresses a weight."""
        decompresses = op.op.startswith("constexpr_")
        found = self._of(chain(_arguments(op), op.attributes.values()), whole=decompresses)
        if decompresses:
            # What it yields counts as elements, not what it reads.
            found = {key: Size(size.stored, 0) for key, size in found.items()}
            found[op] = Size(0, _elements(op.outputs[0].type))
        self._leaves.update({out.name: found for out in op.outputs})

    def take(self, op: Operation) -> Size:
        """Of the weights an operation reads that none before it has read."""
        found = self._of(_arguments(op), whole=False)
        new = {key: size for key, size in found.items() if key not in self._read}
        self._read |= new.keys()
        sizes = new.values()
        return Size(sum(size.stored for size in sizes), sum(size.elements for size in sizes))

    def _of(self, arguments: Iterable[Argument], *, whole: bool) -> _Leaves:
        """Constants behind arguments.

        Those in the weights file; with `whole` those in the program too, such as a scale.
        """
        found: _Leaves = {}
        for argument in arguments:
            if isinstance(argument, Ref):
                found |= self._leaves.get(argument.name, {})
            elif isinstance(argument.data, Blob):
                found[argument.data] = Size(byte_size(argument), _elements(argument.type))
            elif whole and _is_tensor(argument):
                found[id(argument)] = Size(byte_size(argument), 0)
        return found


def _arguments(op: Operation) -> Iterator[Argument]:
    return chain.from_iterable(op.inputs.values())


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is not DType.STRING


def _elements(kind: ValueType) -> int:
    return math.prod(d or 0 for d in kind.shape) if isinstance(kind, TensorType) else 0
