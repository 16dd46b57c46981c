"""From protobuf messages to records; every name, nesting and shape is checked on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_ane.errors import ProgramError
from pytest_ane.mil.proto import mil
from pytest_ane.mil.records import (
    Argument,
    Block,
    DictionaryType,
    Function,
    ListType,
    Named,
    Operation,
    Program,
    Ref,
    StateType,
    TensorType,
    TupleType,
    ValueType,
)
from pytest_ane.mil.values import DTYPES, read_value

_DEEPEST = 32
_MOST_ELEMENTS = 1 << 48


def read_program(message: Any, file: Path) -> Program:
    """A program from its message.

    Raises:
        ProgramError: no function, an unknown type, an undefined or doubly defined name, nesting
            deeper than 32 blocks, or a shape of more than 2^48 elements.
    """
    functions = {name: _function(name, f, file) for name, f in sorted(message.functions.items())}
    if not functions:
        raise ProgramError(f"{file}: the program has no function.")
    return Program(functions)


def _function(name: str, message: Any, file: Path) -> Function:
    blocks = message.block_specializations
    if message.opset not in blocks:
        raise ProgramError(
            f"{file}: function {name!r} has no block for its opset {message.opset!r}."
        )
    reader = _Reader(file, name)
    inputs = reader.named(message.inputs)
    names = reader.distinct(inputs)
    return Function(name, message.opset, inputs, reader.block(blocks[message.opset], names, 0))


class _Reader:
    """Reads one function; `where` begins every complaint."""

    def __init__(self, file: Path, function: str) -> None:
        self.where = f"{file}: function {function!r}"

    def block(self, message: Any, outer: set[str], depth: int) -> Block:
        if depth > _DEEPEST:
            raise ProgramError(f"{self.where}: blocks nest deeper than {_DEEPEST}.")
        inputs = self.named(message.inputs)
        scope = outer | self.distinct(inputs)
        operations = []
        for op in message.operations:
            operation = self.operation(op, scope, depth)
            for output in operation.outputs:
                if output.name in scope:
                    raise ProgramError(f"{self.where}: {output.name!r} is defined twice.")
                scope.add(output.name)
            operations.append(operation)
        for name in message.outputs:
            if name not in scope:
                raise ProgramError(f"{self.where}: its output {name!r} is not defined.")
        return Block(inputs, tuple(operations), tuple(message.outputs))

    def operation(self, message: Any, scope: set[str], depth: int) -> Operation:
        outputs = self.named(message.outputs)
        name = outputs[0].name if outputs else message.type
        where = f"{self.where}, {message.type} {name!r}"
        if message.type == "const" and "val" not in message.attributes:
            raise ProgramError(f"{where}: a constant holds no value.")
        return Operation(
            op=message.type.rpartition(".")[2],
            inputs={
                key: tuple(self.argument(a, scope, where) for a in argument.arguments)
                for key, argument in message.inputs.items()
            },
            outputs=outputs,
            attributes={
                key: read_value(value, self.type(value.type, where), where)
                for key, value in message.attributes.items()
            },
            blocks=tuple(self.block(b, scope, depth + 1) for b in message.blocks),
        )

    def argument(self, message: Any, scope: set[str], where: str) -> Argument:
        if message.WhichOneof("binding") == "value":
            return read_value(message.value, self.type(message.value.type, where), where)
        if message.name not in scope:
            raise ProgramError(f"{where}: its input {message.name!r} is not defined before it.")
        return Ref(message.name)

    def named(self, messages: Iterable[Any]) -> tuple[Named, ...]:
        return tuple(Named(m.name, self.type(m.type, self.where)) for m in messages)

    def distinct(self, inputs: tuple[Named, ...]) -> set[str]:
        names: set[str] = set()
        for named in inputs:
            if named.name in names:
                raise ProgramError(f"{self.where}: {named.name!r} is defined twice.")
            names.add(named.name)
        return names

    def type(self, message: Any, where: str, depth: int = 0) -> ValueType:
        kind = message.WhichOneof("type")
        if depth > _DEEPEST:
            raise ProgramError(f"{where}: types nest deeper than {_DEEPEST}.")
        if kind == "tensorType":
            return self.tensor(message.tensorType, where)
        if kind == "stateType":
            wrapped = self.type(message.stateType.wrappedType, where, depth + 1)
            if isinstance(wrapped, TensorType):
                return StateType(wrapped)
        if kind == "listType":
            list_type = message.listType
            length = list_type.length.constant.size if list_type.HasField("length") else None
            return ListType(self.type(list_type.type, where, depth + 1), length or None)
        if kind == "tupleType":
            return TupleType(tuple(self.type(t, where, depth + 1) for t in message.tupleType.types))
        if kind == "dictionaryType":
            d = message.dictionaryType
            return DictionaryType(
                self.type(d.keyType, where, depth + 1), self.type(d.valueType, where, depth + 1)
            )
        raise ProgramError(f"{where}: a value has no known type.")

    def tensor(self, message: Any, where: str) -> TensorType:
        name = mil().DataType.Name(message.dataType) if message.dataType in _known() else "?"
        if name not in DTYPES:
            raise ProgramError(f"{where}: element type {name} ({message.dataType}) is not known.")
        shape = tuple(
            int(d.constant.size) if d.WhichOneof("dimension") == "constant" else None
            for d in message.dimensions
        )
        if message.rank != len(shape):
            raise ProgramError(
                f"{where}: a type of rank {message.rank} lists {len(shape)} dimensions."
            )
        if math.prod(d or 1 for d in shape) > _MOST_ELEMENTS:
            raise ProgramError(f"{where}: shape {shape} has more elements than fit anywhere.")
        return TensorType(DTYPES[name], shape)


def _known() -> Iterable[int]:
    values: Iterable[int] = mil().DataType.values()
    return values
