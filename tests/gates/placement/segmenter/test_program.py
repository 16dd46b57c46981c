"""Operations of MIL programs as the segmenter sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.placement.segmenter import Op, Tensor, function_ops, predict_model
from pytest_ane.mlprogram.records import Block, DType, Feature, Operation, ValueType
from tests.gates.placement.programs import const, function, half, ints, model, op, value

X: Mapping[str, ValueType] = {"x": half(1, 8, 4, 4)}


def ops(*operations: Operation, inputs: Mapping[str, ValueType] = X) -> tuple[Op, ...]:
    return function_ops(function(*operations, inputs=inputs))


def array(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


def test_operations_have_their_weights_and_attributes() -> None:
    given = {"bias": value(array(16)), "dilations": value([2, 2]), "groups": value(2)}
    made = op("conv", "y", half(1, 16, 2, 2), x="x", weight="w", **given)
    (conv,) = ops(const("w", array(16, 4, 3, 3)), made)
    assert conv.inputs == (Tensor((1, 8, 4, 4)),)
    assert conv.weight == Tensor((16, 4, 3, 3), constant=True)
    assert conv.attributes == {"dilations": (2, 2), "groups": (2,), "bias": (1,)}
    # A weight that is computed at run time is an input; a negative axis counts from the end.
    inputs = {"x": half(1, 8, 4, 4), "w": half(16, 8, 1, 1)}
    (conv,) = ops(op("conv", "y", half(1, 16, 4, 4), x="x", weight="w"), inputs=inputs)
    assert conv.inputs == (Tensor((1, 8, 4, 4)), Tensor((16, 8, 1, 1)))
    assert conv.weight in conv.inputs
    (moved,) = ops(op("transpose", "y", half(8, 1, 4, 4), x="x", perm=value([-3, 0, -2, -1])))
    assert moved.attributes["perm"] == (1, 0, 2, 3)


def test_constant_operands_count_and_operations_on_constants_are_folded() -> None:
    added, normed = ops(
        op("add", "a", half(1, 8, 4, 4), x="x", y=value(1.0)),
        op("layer_norm", "n", half(1, 8, 4, 4), x="a", gamma=value(array(4)), axes=value([3])),
    )
    assert added.inputs == (Tensor((1, 8, 4, 4)), Tensor((), constant=True))
    assert normed.inputs == (Tensor((1, 8, 4, 4)),)
    kinds = [
        operation.kind
        for operation in ops(
            const("c", array(4)),
            op("mul", "d", half(4), x="c", y=value(2.0)),
            op("add", "y", half(1, 8, 4, 4), x="x", y="d"),
        )
    ]
    assert kinds == ["add"]


def test_indices_of_a_gather() -> None:
    inputs = {"x": half(100, 8), "i": ints(4)}
    held, computed = ops(
        op("gather", "a", half(2, 8), x="x", indices=value([1, 2])),
        op("gather", "b", half(4, 8), x="x", indices="i"),
        inputs=inputs,
    )
    assert held.inputs[1] == Tensor((2,), "int32", constant=True)
    assert held.flag("runtime_indices") == 0
    assert computed.inputs[1] == Tensor((4,), "int16")
    assert computed.flag("runtime_indices") == 1


def test_compressed_weights_and_states_are_marked() -> None:
    (linear,) = ops(
        op("constexpr_lut_to_dense", "w", half(16, 4), indices=value(array(16, 4))),
        op("linear", "y", half(1, 8, 4, 16), x="x", weight="w"),
    )
    assert linear.no_data == ("compressed weights",)
    assert linear.weight == Tensor((16, 4), constant=True)
    (read,) = ops(op("read_state", "y", half(1, 8, 4, 4), input="x"))
    assert read.no_data == ("states",)


def test_nested_blocks_are_in_line() -> None:
    inner = op("relu", "r", half(1, 8, 4, 4), x="x")
    block = Block((), (inner,), ("r",))
    outer = replace(op("cond", "y", half(1, 8, 4, 4), pred=value(array())), blocks=(block, block))
    kinds = [(operation.kind, operation.no_data) for operation in ops(outer)]
    assert kinds == [("cond", ()), ("relu", ("nested blocks",)), ("relu", ("nested blocks",))]


def test_a_flexible_shape_is_predicted_where_it_is_given() -> None:
    flexible = function(op("relu", "y", half(1, None), x="x"), inputs={"x": half(1, None)})
    feature = Feature("x", DType.FP16, (1, 64), ranges=((1, 1), (1, 64)))
    (predicted,) = predict_model(model(flexible, features=[feature]), tokens=64)
    assert (predicted.tokens, predicted.prediction.operations[0].unit) == (64, "CPU")
    assert predicted.prediction.no_data == (
        "No public plan has flexible shapes; each shape is predicted as if fixed.",
    )


@pytest.mark.slow
def test_a_program_of_16_000_operations() -> None:
    kinds, names = ("relu", "cumsum", "sigmoid", "silu"), [f"v{i}" for i in range(16_000)]
    shape = half(1, 64, 32, 32)
    chain = [
        op(kinds[i % 4], name, shape, x=names[i - 1] if i else "x") for i, name in enumerate(names)
    ]
    (predicted,) = predict_model(model(function(*chain, inputs={"x": shape})), "ALL")
    assert len(predicted.prediction.operations) == 16_000
