"""Small programs, written by hand in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.gates.placement import Forecast, forecast
from pytest_ane.mlprogram.records import (
    Argument,
    Block,
    DType,
    Feature,
    Function,
    MLModel,
    Named,
    Operation,
    Program,
    Ref,
    TensorType,
    Value,
    ValueType,
)

Given: TypeAlias = "str | Value | Sequence[str]"

_DTYPES = {
    np.dtype(np.float16): DType.FP16,
    np.dtype(np.float32): DType.FP32,
    np.dtype(np.int32): DType.INT32,
    np.dtype(np.int8): DType.INT8,
    np.dtype(np.uint8): DType.UINT8,
    np.dtype(np.bool_): DType.BOOL,
}


def half(*shape: int | None) -> TensorType:
    return TensorType(DType.FP16, shape)


def full(*shape: int | None) -> TensorType:
    return TensorType(DType.FP32, shape)


def ints(*shape: int | None) -> TensorType:
    return TensorType(DType.INT32, shape)


def value(data: Any) -> Value:
    """An immediate value: an array as it is, Python ints as int32, floats as fp16."""
    array = np.asarray(data)
    if array.dtype == np.int64:
        array = array.astype(np.int32)
    if array.dtype == np.float64:
        array = array.astype(np.float16)
    return Value(TensorType(_DTYPES[array.dtype], array.shape), array)


def const(name: str, data: Any) -> Operation:
    made = value(data)
    return Operation("const", {}, (Named(name, made.type),), {"val": made})


def op(kind: str, name: str, result: ValueType | None = None, **given: Given) -> Operation:
    """An operation; strings among its inputs are names of values."""
    inputs = {parameter: _arguments(argument) for parameter, argument in given.items()}
    outputs = () if result is None else (Named(name, result),)
    return Operation(kind, inputs, outputs)


def function(
    *operations: Operation,
    inputs: Mapping[str, ValueType] = MappingProxyType({"x": half(1, 8, 1, 4)}),
    outputs: Sequence[str] = (),
    name: str = "main",
) -> Function:
    named = tuple(Named(key, kind) for key, kind in inputs.items())
    block = Block((), operations, tuple(outputs or (operations[-1].name,) if operations else ()))
    return Function(name, "CoreML8", named, block)


def model(*functions: Function, features: Sequence[Feature] = ()) -> MLModel:
    program = Program({one.name: one for one in functions})
    return MLModel("m.mlpackage", "m/weights", 9, tuple(features), (), (), program)


def foretell(*operations: Operation, **function_arguments: Any) -> Forecast:
    """The forecast of a program of one function."""
    return forecast(model(function(*operations, **function_arguments)), size_bytes=1000)


def rules(*operations: Operation, **function_arguments: Any) -> list[tuple[str, str, str]]:
    """What was found: op name, rule, outcome."""
    found = foretell(*operations, **function_arguments).matches
    return [(finding.op, finding.rule, finding.outcome) for finding in found]


def _arguments(given: Given) -> tuple[Argument, ...]:
    if isinstance(given, Value):
        return (given,)
    names = (given,) if isinstance(given, str) else given
    return tuple(Ref(name) for name in names)
