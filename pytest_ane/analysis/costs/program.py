"""A program's costs at a given T, from the program alone.

Shapes are the executor's own: the program runs on zeros, with one number in place of each weight
and shapes in place of matrix products, so that neither bytes nor arithmetic take time.
"""

from __future__ import annotations

import math

import numpy as np

from pytest_ane.analysis.costs.flexible import Shape, input_shapes
from pytest_ane.analysis.costs.records import Costs
from pytest_ane.analysis.costs.run import Run, size_of
from pytest_ane.analysis.costs.standins import Array, zeros
from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import (
    Blob,
    Function,
    MLModel,
    Operation,
    StateType,
    TensorType,
    Value,
    ValueType,
)
from pytest_ane.mil.values import bits
from pytest_ane.reference.dtypes import carried
from pytest_ane.reference.session import Session
from pytest_ane.reference.steps import Values


def count_costs(model: MLModel, tokens: int = 1) -> Costs:
    """What one call costs.

    Args:
        model: as `mil.read_model` gives it; `weights=False` suffices.
        tokens: T of the inputs' flexible axes; of no concern where there are none.

    Raises:
        ExecutionError: T is none that the inputs take, an operation is unknown, or how often one
            runs depends on values.
    """
    shapes, flexible = input_shapes(model, tokens)
    function = model.main
    _check(model, function)
    session = Session(model, "float32", overrides=_stand_ins(function))
    run = Run(session, _table(session, function, shapes))
    with np.errstate(all="ignore"):
        operations = run.all()
    types = _types(function)
    return Costs(
        tokens=tokens if flexible else None,
        operations=operations,
        inputs=sum(size_of(types[name], shape) for name, shape in shapes.items()),
        outputs=sum(
            size_of(types[name], np.shape(run.result(name))) for name in function.block.outputs
        ),
        held=sum(_held(named.type) for named in function.inputs),
    )


def _check(model: MLModel, function: Function) -> None:
    for op in function.block.operations:
        if op.blocks:
            raise ExecutionError(
                f"{model.path}: {op.name!r} is a {op.op}: what it costs depends on values, not on "
                "the program alone."
            )


def _stand_ins(function: Function) -> dict[Operation, Array]:
    """Zeros for all that lies in the weights file or is decompressed."""
    found = {}
    for op in function.block.operations:
        kind = op.outputs[0].type if op.outputs else None
        if isinstance(kind, TensorType) and (_is_stored(op) or op.op.startswith("constexpr_")):
            shape = tuple(int(d or 0) for d in kind.shape)
            found[op] = zeros(shape, carried(kind.dtype, "float32"))
    return found


def _is_stored(op: Operation) -> bool:
    value: Value | None = op.attributes.get("val")
    return op.op == "const" and value is not None and isinstance(value.data, Blob)


def _table(session: Session, function: Function, shapes: dict[str, Shape]) -> Values:
    """What each slot holds before the first operation: zeros for inputs, fresh states."""
    values = list(session.template)
    try:
        states = session.make_state()
    except (MemoryError, ValueError) as error:
        raise ExecutionError(f"{session.model.path}: its states are too large ({error}).") from None
    for named in function.inputs:
        if isinstance(named.type, TensorType):
            dtype = carried(named.type.dtype, "float32")
            values[session.slots[named.name]] = zeros(shapes[named.name], dtype)
        else:
            values[session.slots[named.name]] = states[named.name]
    return values


def _types(function: Function) -> dict[str, ValueType]:
    outputs = (named for op in function.block.operations for named in op.outputs)
    return {named.name: named.type for named in (*function.inputs, *outputs)}


def _held(kind: ValueType) -> int:
    if not isinstance(kind, StateType):
        return 0
    return math.prod(d or 0 for d in kind.wrapped.shape) * bits(kind.wrapped.dtype) // 8
