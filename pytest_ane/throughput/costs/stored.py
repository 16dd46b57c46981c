"""Bytes of weights as they lie in the file, by the operation that reads them first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from pytest_ane.mil import byte_size
from pytest_ane.mil.records import Argument, Blob, DType, Operation, Ref, TensorType, Value

_Leaves = dict[object, int]
"""Bytes by what tells stored constants apart."""


class Stored:
    """Which stored constants the values of a program come from, filled in program order."""

    def __init__(self) -> None:
        self._leaves: dict[str, _Leaves] = {}
        self._read: set[object] = set()

    def fold(self, op: Operation) -> None:
        """Note an operation of constants alone, such as one that decompresses a weight."""
        decompresses = op.op.startswith("constexpr_")
        found = self._of(chain(_arguments(op), op.attributes.values()), whole=decompresses)
        self._leaves.update({out.name: found for out in op.outputs})

    def take(self, op: Operation) -> int:
        """Bytes of the weights an operation reads that none before it has read."""
        found = self._of(_arguments(op), whole=False)
        new = {key: size for key, size in found.items() if key not in self._read}
        self._read |= new.keys()
        return sum(new.values())

    def _of(self, arguments: Iterable[Argument], *, whole: bool) -> _Leaves:
        """Constants behind arguments.

        Those in the weights file; with `whole` those in the program too, such as a scale.
        """
        found: _Leaves = {}
        for argument in arguments:
            if isinstance(argument, Ref):
                found |= self._leaves.get(argument.name, {})
            elif isinstance(argument.data, Blob):
                found[argument.data] = byte_size(argument)
            elif whole and _is_tensor(argument):
                found[id(argument)] = byte_size(argument)
        return found


def _arguments(op: Operation) -> Iterator[Argument]:
    return chain.from_iterable(op.inputs.values())


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is not DType.STRING
