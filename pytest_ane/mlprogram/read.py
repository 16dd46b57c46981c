"""From protobuf messages to records; every name, nesting and shape is checked on the way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.checks import DEEPEST, check_names
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.proto import mil
from pytest_ane.mlprogram.records import (
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
from pytest_ane.mlprogram.values import DTYPES, read_value, tensor_type


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
    block = reader.block(blocks[message.opset])
    function = Function(name, message.opset, reader.named(message.inputs), block)
    check_names(function, reader.at)
    return function


class _Reader:
    """Reads one function; `where` begins every complaint."""

    def __init__(self, file: Path, function: str) -> None:
        self.where = f"{file}: function {function!r}"
        self._types: dict[bytes, ValueType] = {}

    def at(self, operation: Operation | None) -> str:
        return self.where if operation is None else self.spot(operation.op, operation.name)

    def spot(self, op: str, name: str) -> str:
        return f"{self.where}, {op} {name!r}"

    # protobuf itself refuses messages nested deeper than 100.
    def block(self, message: Any) -> Block:
        return Block(
            inputs=self.named(message.inputs),
            operations=tuple(self.operation(op) for op in message.operations),
            outputs=tuple(message.outputs),
        )

    def operation(self, message: Any) -> Operation:
        outputs = self.named(message.outputs)
        where = self.spot(message.type, outputs[0].name if outputs else message.type)
        # Protobuf keeps maps in another order in every process.
        return Operation(
            op=message.type.rpartition(".")[2],
            inputs={
                key: tuple(self.argument(a, where) for a in argument.arguments)
                for key, argument in sorted(message.inputs.items())
            },
            outputs=outputs,
            attributes={
                key: read_value(value, self.type(value.type, where), where)
                for key, value in sorted(message.attributes.items())
            },
            blocks=tuple(self.block(b) for b in message.blocks),
        )

    def argument(self, message: Any, where: str) -> Argument:
        if message.WhichOneof("binding") == "value":
            return read_value(message.value, self.type(message.value.type, where), where)
        return Ref(message.name)

    def named(self, messages: Iterable[Any]) -> tuple[Named, ...]:
        return tuple(Named(m.name, self.type(m.type, self.where)) for m in messages)

    def type(self, message: Any, where: str) -> ValueType:
        """Read once of equal messages: a program has few types, and says them everywhere."""
        if (known := self._types.get(key := message.SerializeToString())) is None:
            known = self._types[key] = self._type(message, where)
        return known

    def _type(self, message: Any, where: str, depth: int = 0) -> ValueType:
        kind = message.WhichOneof("type")
        if depth > DEEPEST:
            raise ProgramError(f"{where}: types nest deeper than {DEEPEST}.")
        if kind == "tensorType":
            return self.tensor(message.tensorType, where)
        if kind == "stateType":
            wrapped = self._type(message.stateType.wrappedType, where, depth + 1)
            if isinstance(wrapped, TensorType):
                return StateType(wrapped)
        if kind == "listType":
            list_type = message.listType
            length = list_type.length.constant.size if list_type.HasField("length") else None
            return ListType(self._type(list_type.type, where, depth + 1), length or None)
        if kind == "tupleType":
            types = message.tupleType.types
            return TupleType(tuple(self._type(t, where, depth + 1) for t in types))
        if kind == "dictionaryType":
            d = message.dictionaryType
            return DictionaryType(
                self._type(d.keyType, where, depth + 1), self._type(d.valueType, where, depth + 1)
            )
        raise ProgramError(f"{where}: a value has no known type.")

    def tensor(self, message: Any, where: str) -> TensorType:
        known = message.dataType in mil().DataType.values()
        name = mil().DataType.Name(message.dataType) if known else "?"
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
        return tensor_type(DTYPES[name], shape, where)
