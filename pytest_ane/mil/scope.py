"""The names of a program: each defined once and before its use; blocks nest only so deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import Block, Function, Named, Operation, Ref

DEEPEST = 32
"""Blocks, and types, that nest deeper are refused; real ones nest two or three deep."""

Where: TypeAlias = "Callable[[Operation | None], str]"


def check_names(function: Function, where: Where) -> None:
    """Check every name of a function.

    Args:
        function: as read, nested at most as deep as Python's stack allows.
        where: what begins a complaint: the file and the operation, or the function for None.

    Raises:
        ProgramError: an undefined or doubly defined name, or blocks nested deeper than 32.
    """
    _Names(where).function(function)


class _Names:
    def __init__(self, where: Where) -> None:
        self.where = where
        self.scope: set[str] = set()

    def function(self, function: Function) -> None:
        self.scope |= self.distinct(function.inputs)
        self.block(function.block, 0)

    def block(self, block: Block, depth: int) -> None:
        if depth > DEEPEST:
            raise ProgramError(f"{self.where(None)}: blocks nest deeper than {DEEPEST}.")
        mine = self.distinct(block.inputs) - self.scope
        self.scope |= mine
        for operation in block.operations:
            self.operation(operation, depth)
            for output in operation.outputs:
                if output.name in self.scope:
                    raise self.twice(output.name, operation)
                self.scope.add(output.name)
                mine.add(output.name)
        for name in block.outputs:
            if name not in self.scope:
                raise ProgramError(f"{self.where(None)}: its output {name!r} is not defined.")
        # What a nested block defines ends with it.
        self.scope -= mine

    def operation(self, operation: Operation, depth: int) -> None:
        for arguments in operation.inputs.values():
            for argument in arguments:
                if isinstance(argument, Ref) and argument.name not in self.scope:
                    raise ProgramError(
                        f"{self.where(operation)}: its input {argument.name!r} is not defined "
                        "before it."
                    )
        for nested in operation.blocks:
            self.block(nested, depth + 1)

    def distinct(self, inputs: Iterable[Named]) -> set[str]:
        names: set[str] = set()
        for named in inputs:
            if named.name in names:
                raise self.twice(named.name, None)
            names.add(named.name)
        return names

    def twice(self, name: str, operation: Operation | None) -> ProgramError:
        return ProgramError(f"{self.where(operation)}: {name!r} is defined twice.")
