"""Programs as text, `model.mil`: read by LALR tables of `mil.lark`, and written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from sys import intern
from typing import Any, TypeVar

import numpy as np
from lark import Lark, Token, Transformer, exceptions, v_args

from pytest_ane.mlprogram.checks import DEEPEST, check_names
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
from pytest_ane.mlprogram.values import (
    NAME,
    OPSETS,
    Literal,
    Number,
    Pairs,
    Row,
    Text,
    quote,
    read_literal,
    tensor_type,
    unquote,
)

_DEEPEST_STACK = 1024
"""Symbols the parser holds at once: a block holds about ten, and 32 may nest."""


def parse(text: str, file: object = "model.mil") -> Program:
    """A program from the text of a `file`; attributes of it and of its functions are not kept."""
    try:
        return _parsed(text)
    except _Fault as fault:
        raise ProgramError(f"{file}:{fault}") from None
    except exceptions.UnexpectedInput as error:
        raise ProgramError(f"{file}:{_complaint(error, text)}") from None
    except exceptions.LarkError as error:
        raise ProgramError(f"{file}: cannot be parsed ({type(error).__name__}).") from None


def _parsed(text: str) -> Program:
    interactive = _parser().parse_interactive(text)
    stack = interactive.parser_state.value_stack
    for token in interactive.iter_parse():
        # Repetition leaves nothing on the stack, nesting does.
        if len(stack) > _DEEPEST_STACK:
            raise _Fault(f"{token.line}:{token.column}: brackets nest too deep.")
    program: Program = interactive.feed_eof()  # type: ignore[no-untyped-call]
    return program


@cache
def _parser() -> Lark:
    grammar = files(__package__).joinpath("mil.lark").read_text("utf-8")
    options: dict[str, Any] = {"parser": "lalr", "lexer": "contextual", "g_regex_flags": re.ASCII}
    return Lark(grammar, transformer=_Build(), **options)


def _complaint(error: exceptions.UnexpectedInput, text: str) -> str:
    token = error.token if isinstance(error, exceptions.UnexpectedToken) else None
    if getattr(token, "type", "") == "$END" or isinstance(error, exceptions.UnexpectedEOF):
        return f"{text.count(chr(10)) + 1}: the text ends too early; the file is cut short."
    at, unexpected = f"{error.line}:{error.column}", token or text[error.pos_in_stream or 0 :][:1]
    if isinstance(error, exceptions.UnexpectedCharacters) and unexpected == '"':
        return f"{at}: a text that does not end, or of more than 65,535 escapes."
    return f"{at}: {str(unexpected)[:40]!r} has no place here."


T = TypeVar("T")
_TENSOR = re.compile(r"tensor\w*\s*<\s*(\w+)\s*,[\s\w=]*\[([^\]]*)\]", re.ASCII)


class _Fault(Exception):
    """What is wrong, after `line:column: `; the parser adds the file."""


@dataclass(frozen=True)
class _Typed:
    """A value whose literal is not read yet; those of functions' attributes never are."""

    type: ValueType
    literal: Literal
    token: Token

    def read(self) -> Value:
        try:
            return Value(self.type, read_literal(self.literal, self.type, _at(self.token)))
        except ProgramError as error:
            raise _Fault(str(error)) from None


@dataclass(frozen=True)
class _Body:
    """A block, and the tokens of its operations by identity."""

    block: Block
    tokens: dict[int, Token]


_Statement = tuple[Operation, Token, tuple[_Body, ...]]


@v_args(inline=True)
class _Build(Transformer[Token, Program]):
    """From tokens to records, bottom up: a method for each rule of `mil.lark`, of the same name."""

    def start(self, version: Token, _: Any, *functions: tuple[Token, Function]) -> Program:
        if not functions:
            raise _Fault(f"{_at(version)}: the program has no function.")
        return Program(dict(sorted(_distinct(functions).items())))

    def function(
        self, name: Token, opset: Token, inputs: tuple[Named, ...], _: Any, body: _Body
    ) -> tuple[Token, Function]:
        version = OPSETS.get(opset, _name(opset))
        function = Function(_name(name), version, inputs, body.block)

        def where(op: Operation | None) -> str:
            token = name if op is None else body.tokens[id(op)]
            what = "" if op is None else f", {op.op} {op.name!r}"
            return f"{_at(token)}: function {function.name!r}{what}"

        try:
            check_names(function, where)
        except ProgramError as error:
            raise _Fault(str(error)) from None
        return name, function

    def blocks(self, *items: Any) -> tuple[Any, ...]:
        return _present(items)

    parameters = results = blocks

    def named(self, kind: ValueType, name: Token) -> Named:
        return Named(_name(name), kind)

    def names(self, *names: Token | None) -> tuple[str, ...]:
        return tuple(map(_name, _present(names)))

    def body(self, *parts: Any) -> _Body:
        statements: tuple[_Statement, ...] = parts[:-1]
        tokens = {id(operation): token for operation, token, _ in statements}
        for _, _, nested in statements:
            for inner in nested:
                tokens |= inner.tokens
        return _Body(Block((), tuple(s[0] for s in statements), parts[-1]), tokens)

    def block(self, *parts: Any) -> _Body:
        *_, inputs, body = parts
        return _Body(replace(body.block, inputs=inputs), body.tokens)

    def operation(
        self, outputs: tuple[Named, ...] | None, callee: Token, _: Token | None,
        arguments: dict[str, tuple[Argument, ...]], attributes: dict[str, _Typed] | None,
        blocks: tuple[_Body, ...],
    ) -> _Statement:  # fmt: skip
        op = intern(str(callee).rpartition(".")[2])
        values = {key: typed.read() for key, typed in (attributes or {}).items()}
        inner = tuple(body.block for body in blocks)
        return Operation(op, arguments, outputs or (), values, inner), callee, blocks

    def arguments(self, *pairs: Any) -> dict[str, Any]:
        return _distinct(_present(pairs))

    attributes = arguments

    def one(self, name: Token, binding: Ref | _Typed) -> tuple[Token, tuple[Argument, ...]]:
        return name, (_argument(binding),)

    def many(self, name: Token, *bindings: Any) -> tuple[Token, tuple[Argument, ...]]:
        return name, tuple(map(_argument, _present(bindings)))

    def reference(self, name: Token) -> Ref:
        return Ref(_name(name))

    def value(self, kind: ValueType, token: Token, literal: Literal) -> _Typed:
        return _Typed(kind, literal, token)

    def scalar_value(self, token: Token, literal: Literal) -> _Typed:
        return _Typed(_tensor(token, token.rstrip("( \t\r\n"), ""), literal, token)

    def tensor(self, token: Token) -> TensorType:
        match = _TENSOR.match(token)
        assert match
        return _tensor(token, *match.groups())

    def scalar(self, token: Token) -> TensorType:
        return _tensor(token, str(token), "")

    def list_type(self, token: Token, element: ValueType, length: Token) -> ListType:
        try:
            extent = None if length == "?" else int(length)
        except ValueError:
            raise _Fault(f"{_at(length)}: {length[:60]!r} is no number.") from None
        return _shallow(ListType(element, extent), token)

    def dict_type(self, token: Token, key: ValueType, value: ValueType) -> DictionaryType:
        return _shallow(DictionaryType(key, value), token)

    def tuple_type(self, token: Token, *elements: ValueType | None) -> TupleType:
        return _shallow(TupleType(_present(elements)), token)

    def state_type(self, token: Token, wrapped: ValueType) -> StateType:
        if not isinstance(wrapped, TensorType):
            raise _Fault(f"{_at(token)}: a state holds a tensor, nothing else.")
        return StateType(wrapped)

    def text(self, token: Token) -> Text:
        try:
            return Text(unquote(token))
        except ValueError as error:
            raise _Fault(f"{_at(token)}: {error}.") from None

    number, row = Number, Row

    def rows(self, *literals: Literal) -> list[Literal]:
        return [*literals]

    def members(self, _: Token, *literals: Literal | None) -> tuple[Literal, ...]:
        return _present(literals)

    def pairs(self, *pairs: Any) -> Pairs:
        return Pairs(_present(pairs))

    def pair(self, key: Any, value: Any) -> tuple[Any, Any]:
        return key, value

    attribute = pair

    def blob(self, token: Token, *fields: tuple[Token, _Typed]) -> Blob:
        values = {key: typed.read().data for key, typed in _distinct(fields).items()}
        path, offset = values.pop("path", None), values.pop("offset", None)
        number = isinstance(offset, np.ndarray) and offset.shape == () and offset.dtype.kind in "iu"
        if values or not isinstance(path, str) or not number:
            raise _Fault(f"{_at(token)}: a blob is a path, a text, and an offset, a number.")
        return Blob(intern(path), int(np.asarray(offset)))


def _at(token: Token) -> str:
    return f"{token.line}:{token.column}"


def _name(token: Token) -> str:
    return intern(str(token))


def _present(items: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(item for item in items if item is not None)


def _distinct(pairs: Iterable[tuple[Token, T]]) -> dict[str, T]:
    result: dict[str, T] = {}
    for token, item in pairs:
        name = _name(token)
        if name in result:
            raise _Fault(f"{_at(token)}: {name!r} is defined twice.")
        result[name] = item
    return result


def _argument(binding: Ref | _Typed) -> Argument:
    return binding.read() if isinstance(binding, _Typed) else binding


def _tensor(token: Token, dtype: str, dims: str) -> TensorType:
    try:
        return _tensor_type(dtype, dims)
    except ProgramError as error:
        raise _Fault(f"{_at(token)}{error}") from None
    except ValueError:
        raise _Fault(f"{_at(token)}: {token[:60]!r} is no type.") from None


@lru_cache(maxsize=4096)
def _tensor_type(dtype: str, dims: str) -> TensorType:
    if "_" in dims:
        raise ValueError("Python's digit groups are no part of MIL")
    words = [d.strip() for d in dims.split(",")] if dims.strip() else []
    shape = tuple(None if d == "?" else int(d) for d in words)
    return tensor_type(DType(dtype), shape, "")


def _shallow(kind: T, token: Token) -> T:
    if _deep(kind, DEEPEST):
        raise _Fault(f"{_at(token)}: types nest deeper than {DEEPEST}.")
    return kind


def _deep(kind: Any, left: int) -> bool:
    """Whether a type nests deeper than `left`."""
    inner: tuple[Any, ...] = ()
    if isinstance(kind, TupleType):
        inner = kind.elements
    elif isinstance(kind, ListType | DictionaryType):
        inner = tuple(vars(kind).values())
    return left < 0 or any(_deep(each, left - 1) for each in inner)


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
        opset = _TEXTS.get(function.opset) or _spelled(function.opset)
        yield f"    func {_spelled(function.name)}<{opset}>({self.named(function.inputs)}) "
        if function.block.inputs:
            raise ProgramError(f"function {function.name!r}: its block has inputs of its own.")
        yield from self.body(function.block, "    ")
        yield ";\n"

    def body(self, block: Block, indent: str) -> Iterator[str]:
        yield "{\n"
        for operation in block.operations:
            yield from self.operation(operation, f"{indent}    ")
        yield f"{indent}}} -> ({', '.join(map(_spelled, block.outputs))})"

    def operation(self, operation: Operation, indent: str) -> Iterator[str]:
        yield indent
        if operation.outputs:
            yield f"{self.named(operation.outputs)} = "
        inputs = (f"{_spelled(k)} = {self.arguments(a)}" for k, a in operation.inputs.items())
        yield f"{_spelled(operation.op)}({', '.join(inputs)})"
        yield self.attributes(operation.attributes)
        for block in operation.blocks:
            yield f" block({self.named(block.inputs)}) "
            yield from self.body(block, indent)
        yield ";\n"

    def arguments(self, arguments: Sequence[Argument]) -> str:
        written = [_spelled(a.name) if isinstance(a, Ref) else self.value(a) for a in arguments]
        return written[0] if len(written) == 1 else f"({', '.join(written)})"

    def attributes(self, attributes: Mapping[str, Value]) -> str:
        pairs = ", ".join(f"{_spelled(k)} = {self.value(v)}" for k, v in attributes.items())
        return f"[{pairs}]" if pairs else ""

    def value(self, value: Value) -> str:
        if isinstance(blob := value.data, Blob):
            path = f"{self.type(_TEXT)}({quote(blob.file)})"
            text = f"BLOBFILE(path = {path}, offset = {self.type(_OFFSET)}({blob.offset}))"
        else:
            text = _literal(blob, value.type)
        return f"{self.type(value.type)}({text})"

    def named(self, named: Iterable[Named]) -> str:
        return ", ".join(f"{self.type(n.type)} {_spelled(n.name)}" for n in named)

    def type(self, kind: ValueType) -> str:
        if isinstance(kind, TensorType):
            whole = f"tensor<{kind.dtype}, [{', '.join(map(_dim, kind.shape))}]>"
            return str(kind.dtype) if self.bare and not kind.shape else whole
        if isinstance(kind, StateType):
            return f"state<{self.type(kind.wrapped)}>"
        if isinstance(kind, ListType):
            return f"list<{self.type(kind.element)}, {_dim(kind.length)}>"
        if isinstance(kind, TupleType):
            return f"tuple<{', '.join(map(self.type, kind.elements))}>"
        return f"dict<{self.type(kind.key)}, {self.type(kind.value)}>"


def _spelled(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ProgramError(f"{name!r} is no name that the text of a program can have.")
    return name


def _dim(extent: int | None) -> str:
    return "?" if extent is None else str(extent)


def _literal(data: Any, kind: ValueType) -> str:
    if isinstance(kind, TensorType):
        return _tensor_literal(data, kind)
    if isinstance(kind, ListType):
        return f"[{', '.join(_literal(d, kind.element) for d in data)}]"
    if isinstance(kind, TupleType):
        return f"({', '.join(map(_literal, data, kind.elements))})"
    if isinstance(kind, DictionaryType):
        pairs = (f"{{{_literal(k, kind.key)}, {_literal(v, kind.value)}}}" for k, v in data)
        return f"{{{', '.join(pairs)}}}"
    raise ProgramError(f"a constant of type {kind} cannot be written.")


def _tensor_literal(data: Any, kind: TensorType) -> str:
    if kind.dtype is DType.STRING:
        words = [quote(t) for t in ([data] if isinstance(data, str) else data)]
    else:
        numbers = np.asarray(data).reshape(-1).tolist()
        words = [_hexadecimal(x) if isinstance(x, float) else str(x).lower() for x in numbers]
    if 0 in kind.shape:
        return "[]"
    for extent in reversed(kind.shape):
        size = int(extent or 0)
        words = [f"[{', '.join(words[i : i + size])}]" for i in range(0, len(words), size)]
    return words[0]


def _hexadecimal(number: float) -> str:
    """C's `%a`: no zeros at the end, `inf` and `nan` as words."""
    mantissa, p, exponent = number.hex().partition("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}{p}{exponent}"
