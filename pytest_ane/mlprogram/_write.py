"""Programs as text: what `parse` reads, in the words that Core ML's compiler uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
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
    Value,
    ValueType,
)
from pytest_ane.mlprogram.values import NAME, OPSETS, quote

_BARE = frozenset({"CoreML8", "CoreML9"})
"""From these opsets on the compiler writes `int32` for `tensor<int32, []>`."""
_TEXTS = {record: text for text, record in OPSETS.items()}
_TEXT, _OFFSET = TensorType(DType.STRING), TensorType(DType.UINT64)


def write(program: Program) -> str:
    """The text of a program; `parse(write(program))` gives an equal one."""
    bare = any(f.opset in _BARE for f in program.functions.values())
    return "".join(_Writer(bare).program(program))


class _Writer:
    """Writes in one of two dialects: `program(1.3)` is the one with bare scalar types."""

    def __init__(self, bare: bool) -> None:
        self.bare = bare

    def program(self, program: Program) -> Iterator[str]:
        yield f"program({'1.3' if self.bare else '1.0'})\n{{\n"
        for function in program.functions.values():
            yield from self.function(function)
        yield "}\n"

    def function(self, function: Function) -> Iterator[str]:
        opset = _TEXTS.get(function.opset) or _name(function.opset)
        yield f"    func {_name(function.name)}<{opset}>({self.named(function.inputs)}) "
        if function.block.inputs:
            raise ProgramError(f"function {function.name!r}: its block has inputs of its own.")
        yield from self.body(function.block, "    ")
        yield ";\n"

    def body(self, block: Block, indent: str) -> Iterator[str]:
        yield "{\n"
        for operation in block.operations:
            yield from self.operation(operation, f"{indent}    ")
        yield f"{indent}}} -> ({', '.join(map(_name, block.outputs))})"

    def operation(self, operation: Operation, indent: str) -> Iterator[str]:
        yield indent
        if operation.outputs:
            yield f"{self.named(operation.outputs)} = "
        inputs = (f"{_name(k)} = {self.arguments(a)}" for k, a in operation.inputs.items())
        yield f"{_name(operation.op)}({', '.join(inputs)})"
        yield self.attributes(operation.attributes)
        for block in operation.blocks:
            yield f" block({self.named(block.inputs)}) "
            yield from self.body(block, indent)
        yield ";\n"

    def arguments(self, arguments: Sequence[Argument]) -> str:
        written = [_name(a.name) if isinstance(a, Ref) else self.value(a) for a in arguments]
        return written[0] if len(written) == 1 else f"({', '.join(written)})"

    def attributes(self, attributes: Mapping[str, Value]) -> str:
        if not attributes:
            return ""
        return f"[{', '.join(f'{_name(k)} = {self.value(v)}' for k, v in attributes.items())}]"

    def value(self, value: Value) -> str:
        data = value.data
        text = self.blob(data) if isinstance(data, Blob) else _literal(data, value.type)
        return f"{self.type(value.type)}({text})"

    def blob(self, blob: Blob) -> str:
        path, offset = self.type(_TEXT), self.type(_OFFSET)
        return f"BLOBFILE(path = {path}({quote(blob.file)}), offset = {offset}({blob.offset}))"

    def named(self, named: Iterable[Named]) -> str:
        return ", ".join(f"{self.type(n.type)} {_name(n.name)}" for n in named)

    def type(self, kind: ValueType) -> str:
        if isinstance(kind, TensorType):
            if self.bare and not kind.shape:
                return str(kind.dtype)
            return f"tensor<{kind.dtype}, [{', '.join(map(_dim, kind.shape))}]>"
        if isinstance(kind, StateType):
            return f"state<{self.type(kind.wrapped)}>"
        if isinstance(kind, ListType):
            return f"list<{self.type(kind.element)}, {_dim(kind.length)}>"
        if isinstance(kind, TupleType):
            return f"tuple<{', '.join(map(self.type, kind.elements))}>"
        return f"dict<{self.type(kind.key)}, {self.type(kind.value)}>"


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ProgramError(f"{name!r} is no name that the text of a program can have.")
    return name


def _dim(extent: int | None) -> str:
    return "?" if extent is None else str(extent)


def _literal(data: Any, kind: ValueType) -> str:
    if isinstance(kind, TensorType):
        return _tensor(data, kind)
    if isinstance(kind, ListType):
        return f"[{', '.join(_literal(d, kind.element) for d in data)}]"
    if isinstance(kind, TupleType):
        fields = zip(data, kind.elements, strict=True)
        return f"({', '.join(_literal(d, k) for d, k in fields)})"
    if isinstance(kind, DictionaryType):
        pairs = (f"{{{_literal(k, kind.key)}, {_literal(v, kind.value)}}}" for k, v in data)
        return f"{{{', '.join(pairs)}}}"
    raise ProgramError(f"a constant of type {kind} cannot be written.")


def _tensor(data: Any, kind: TensorType) -> str:
    if kind.dtype is DType.STRING:
        words = [quote(t) for t in ([data] if isinstance(data, str) else data)]
    else:
        words = _words(np.asarray(data).reshape(-1))
    if 0 in kind.shape:
        return "[]"
    for extent in reversed(kind.shape):
        size = int(extent or 0)
        words = [f"[{', '.join(words[i : i + size])}]" for i in range(0, len(words), size)]
    return words[0]


def _words(array: Any) -> list[str]:
    """Numbers as the compiler writes them, each exact."""
    if array.dtype.kind == "b":
        return ["true" if x else "false" for x in array.tolist()]
    if array.dtype.kind == "f":
        return [_hexadecimal(x) for x in array.astype(np.float64).tolist()]
    return [str(x) for x in array.tolist()]


def _hexadecimal(number: float) -> str:
    """C's `%a`: no zeros at the end, `inf` and `nan` as words."""
    mantissa, p, exponent = number.hex().partition("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}{p}{exponent}"
