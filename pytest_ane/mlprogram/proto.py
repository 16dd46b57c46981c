"""Protobuf messages, and programs read from them; every name, nesting and shape is checked.

The messages are coremltools' definitions without coremltools, 0.03 s instead of three:
`import coremltools` loads converters and torch. The generated modules in `coremltools/proto` need
protobuf alone, so they are loaded under the package's own name from a bare parent module, which is
taken away again: a later real `import coremltools` runs as if nothing had happened and finds the
same message classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pytest_ane.mlprogram.checks import DEEPEST, check_names
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import (
    Argument,
    Block,
    DictionaryType,
    DType,
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

_PARENT = "coremltools"


@cache
def definitions() -> Any:
    """The module `coremltools.proto.Model_pb2`; its `MIL__pb2` holds the program's messages."""
    if _PARENT in sys.modules:
        return import_module(f"{_PARENT}.proto.Model_pb2")
    spec = find_spec(_PARENT)
    if spec is None or not spec.submodule_search_locations:
        raise ProgramError("coremltools is not installed; run: pip install coremltools")
    parent = ModuleType(_PARENT)
    parent.__path__ = list(spec.submodule_search_locations)
    sys.modules[_PARENT] = parent
    try:
        return import_module(f"{_PARENT}.proto.Model_pb2")
    finally:
        del sys.modules[_PARENT]


def mil() -> Any:
    """The module `coremltools.proto.MIL_pb2`, which holds the messages of programs."""
    definitions()
    return sys.modules[f"{_PARENT}.proto.MIL_pb2"]


_PROTO = {dtype: name for name, dtype in DTYPES.items()}


def set_type(message: Any, dtype: DType, shape: tuple[int, ...]) -> None:
    """Make a `ValueType` that of a tensor."""
    message.Clear()
    tensor = message.tensorType
    tensor.dataType, tensor.rank = mil().DataType.Value(_PROTO[dtype]), len(shape)
    for extent in shape:
        tensor.dimensions.add().constant.size = extent


def set_blob(message: Any, dtype: DType, shape: tuple[int, ...], file: str, offset: int) -> None:
    """Make a `Value` one that lies in a weights file."""
    set_type(message.type, dtype, shape)
    message.blobFileValue.fileName, message.blobFileValue.offset = file, offset


def set_bytes(message: Any, dtype: DType, shape: tuple[int, ...], data: bytes) -> None:
    """Make a `Value` one that lies in the program, of a type that is kept as bytes."""
    set_type(message.type, dtype, shape)
    message.immediateValue.tensor.bytes.values = data


def set_name(message: Any, name: str) -> None:
    """Make a `Value` one that holds a text, such as an operation's `name`."""
    set_type(message.type, DType.STRING, ())
    del message.immediateValue.tensor.strings.values[:]
    message.immediateValue.tensor.strings.values.append(name)


@cache
def _ordered() -> tuple[Any, frozenset[str]]:
    """The definitions with maps as lists of entries, which have an order; and entries' names."""
    pool, entries = DescriptorPool(), set[str]()

    def add(file: Any) -> None:
        for dependency in file.dependencies:
            add(dependency)
        copied = FileDescriptorProto()
        file.CopyToProto(copied)
        for message in copied.message_type:
            clear(message, f"{file.package}.{message.name}")
        pool.AddSerializedFile(copied.SerializeToString())  # Again is no change.

    def clear(message: Any, name: str) -> None:
        if message.options.map_entry:
            message.options.map_entry = False
            entries.add(name)
        for nested in message.nested_type:
            clear(nested, f"{name}.{nested.name}")

    add(definitions().Model.DESCRIPTOR.file)
    return pool, frozenset(entries)


def canonical_bytes(message: Any) -> bytes:
    """A message in one form, whichever protobuf wrote it.

    Its fields are in the order of their numbers, its maps in that of their keys; unknown fields are
    left out. protobuf's own deterministic serialization sorts maps, but not alike in C and in
    Python (protobuf.dev/programming-guides/serialization-not-canonical).
    """
    pool, entries = _ordered()

    def sort(message: Any) -> None:
        for field, value in message.ListFields():
            if (kind := field.message_type) is not None:
                for each in value if field.is_repeated else (value,):
                    sort(each)
                if kind.full_name in entries:
                    value.sort(key=attrgetter("key"))

    listed = GetMessageClass(pool.FindMessageTypeByName(message.DESCRIPTOR.full_name))()
    listed.ParseFromString(message.SerializeToString())
    listed.DiscardUnknownFields()
    sort(listed)
    written: bytes = listed.SerializeToString()
    return written


def read_program(message: Any, file: Path) -> Program:
    """A program from its message."""
    functions = {name: _function(name, f, file) for name, f in sorted(message.functions.items())}
    if not functions:
        raise ProgramError(f"{file}: the program has no function.")
    return Program(functions)


def _function(name: str, message: Any, file: Path) -> Function:
    blocks = message.block_specializations
    if message.opset not in blocks:
        says = f"function {name!r} has no block for its opset {message.opset!r}"
        raise ProgramError(f"{file}: {says}.")
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
        inner = partial(self._type, where=where, depth=depth + 1)
        if kind == "tensorType":
            return self.tensor(message.tensorType, where)
        if kind == "stateType":
            wrapped = inner(message.stateType.wrappedType)
            if isinstance(wrapped, TensorType):
                return StateType(wrapped)
        if kind == "listType":
            length = message.listType.length.constant.size
            return ListType(inner(message.listType.type), length or None)
        if kind == "tupleType":
            return TupleType(tuple(map(inner, message.tupleType.types)))
        if kind == "dictionaryType":
            pair = message.dictionaryType
            return DictionaryType(inner(pair.keyType), inner(pair.valueType))
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
        if message.rank != (n := len(shape)):
            raise ProgramError(f"{where}: a type of rank {message.rank} lists {n} dimensions.")
        return tensor_type(DTYPES[name], shape, where)
