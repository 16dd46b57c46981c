"""Whether two programs are the same, as a package and its compiled twin should be.

Equal are: functions by name; opset; inputs with their types; operations in the same order, with
the same names, arguments, attributes and nested blocks; outputs in the same order; constants by
their values. Not compared, because they carry no meaning:

- the order of a function's inputs, which are bound by name (the compiler sorts them), and the order
  in which an operation's parameters and attributes are written;
- where a constant lies, in the program or at which offset of which file, if models are compared;
  of bare programs, whose files are not known, blobs must have the same file and offset;
- the payload of a NaN. Zeros must have the same sign.

Prefixes of operations (`ios16.gather`) and the spelling of opsets (`ios16`, `CoreML6`) are gone
once programs are read. Nothing else is normalised: the real pairs at hand differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from pytest_ane.mil.blob import load
from pytest_ane.mil.records import (
    Argument,
    Blob,
    Block,
    Function,
    MLModel,
    Operation,
    Program,
    Ref,
    Value,
)


def equal(a: MLModel | Program, b: MLModel | Program) -> bool:
    """Whether two models or programs are the same, by the rules above."""
    return not differences(a, b, most=1)


def differences(a: MLModel | Program, b: MLModel | Program, *, most: int = 20) -> list[str]:
    """What differs, one sentence each with its place, the first `most` in program order.

    Raises:
        ProgramError: models are compared and a weight is not where it should be.
    """
    models = (a, b) if isinstance(a, MLModel) and isinstance(b, MLModel) else None
    programs = [x.program if isinstance(x, MLModel) else x for x in (a, b)]
    return list(islice(_Comparison(models).programs(*programs), most))


class _Comparison:
    def __init__(self, models: tuple[MLModel, MLModel] | None) -> None:
        self.models = models

    def programs(self, a: Program, b: Program) -> Iterator[str]:
        yield from _keys("program: functions", a.functions, b.functions)
        for name in _common(a.functions, b.functions):
            yield from self.function(f"function {name!r}", a.functions[name], b.functions[name])

    def function(self, where: str, a: Function, b: Function) -> Iterator[str]:
        yield from _one(f"{where}: opset", a.opset, b.opset)
        x, y = ({n.name: n.type for n in f.inputs} for f in (a, b))
        yield from _keys(f"{where}: inputs", x, y)
        for name in _common(x, y):
            yield from _one(f"{where}: input {name!r}", x[name], y[name])
        yield from self.block(where, a.block, b.block)

    def block(self, where: str, a: Block, b: Block) -> Iterator[str]:
        yield from _one(f"{where}: inputs of its block", a.inputs, b.inputs)
        for x, y in zip(a.operations, b.operations, strict=False):
            yield from self.operation(f"{where}, {x.op} {x.name!r}", x, y)
        yield from _one(f"{where}: number of operations", len(a.operations), len(b.operations))
        yield from _one(f"{where}: outputs", a.outputs, b.outputs)

    def operation(self, where: str, a: Operation, b: Operation) -> Iterator[str]:
        yield from _one(f"{where}: operation", a.op, b.op)
        yield from _one(f"{where}: results", a.outputs, b.outputs)
        yield from _keys(f"{where}: parameters", a.inputs, b.inputs)
        for key in _common(a.inputs, b.inputs):
            yield from self.arguments(f"{where}: {key}", a.inputs[key], b.inputs[key])
        yield from _keys(f"{where}: attributes", a.attributes, b.attributes)
        for key in _common(a.attributes, b.attributes):
            yield from self.values(f"{where}: {key}", a.attributes[key], b.attributes[key])
        yield from _one(f"{where}: number of blocks", len(a.blocks), len(b.blocks))
        for i, (x, y) in enumerate(zip(a.blocks, b.blocks, strict=False)):
            yield from self.block(f"{where}, block {i}", x, y)

    def arguments(self, where: str, a: Sequence[Argument], b: Sequence[Argument]) -> Iterator[str]:
        yield from _one(f"{where}: number of arguments", len(a), len(b))
        for x, y in zip(a, b, strict=False):
            if isinstance(x, Value) and isinstance(y, Value):
                yield from self.values(where, x, y)
            else:
                yield from _one(where, _shown(x), _shown(y))

    def values(self, where: str, a: Value, b: Value) -> Iterator[str]:
        yield from _one(f"{where}: type", a.type, b.type)
        if a.type == b.type and not self.same(a, b):
            yield f"{where}: values of {a.type} differ."

    def same(self, a: Value, b: Value) -> bool:
        x, y = a.data, b.data
        if isinstance(x, Blob) or isinstance(y, Blob):
            if self.models is None:
                return isinstance(x, Blob) and x == y
            x, y = load(self.models[0], a), load(self.models[1], b)
        return _same(x, y)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _same_arrays(a, b)
    return type(a) is type(b) and bool(a == b)


def _same_arrays(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a)
    return bool(np.array_equal(a, b, equal_nan=True) and signs.all())


def _common(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    return (key for key in a if key in b)


def _keys(where: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    return _one(where, sorted(a), sorted(b))


def _one(where: str, a: Any, b: Any) -> Iterator[str]:
    if a != b:
        yield f"{where}: {_short(a)} against {_short(b)}."


def _short(what: Any) -> str:
    text = str(what)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _shown(argument: Argument) -> str:
    return argument.name if isinstance(argument, Ref) else f"a constant {argument.type}"
