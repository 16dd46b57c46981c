"""Shapes of inputs at a T."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_ane.analysis.costs.flexible import input_shapes, largest
from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import (
    Block,
    DType,
    Feature,
    Function,
    MLModel,
    Named,
    Program,
    StateType,
    TensorType,
)


def model(dims: tuple[int | None, ...], **feature: Any) -> MLModel:
    kind = TensorType(DType.FP16, dims)
    state = StateType(TensorType(DType.FP16, (1, 4)))
    inputs = (Named("x", kind), Named("cache", state))
    function = Function("main", "CoreML8", inputs, Block((), (), ("x",)))
    declared = Feature("x", DType.FP16, **{"shape": (1, 8, 1), **feature})
    return MLModel("m.mlpackage", "", 9, (declared,), (), (), Program({"main": function}))


def test_a_range_takes_t() -> None:
    flexible = model((1, 8, None), ranges=((1, 1), (8, 8), (1, 4)))
    assert input_shapes(flexible, 3) == ({"x": (1, 8, 3)}, True)
    unbounded = model((1, 8, None), ranges=((1, 1), (8, 8), (1, None)))
    assert input_shapes(unbounded, 900) == ({"x": (1, 8, 900)}, True)


def test_a_fixed_shape_is_as_it_is() -> None:
    assert input_shapes(model((1, 8, 5)), 3) == ({"x": (1, 8, 5)}, False)


def test_a_listed_shape_is_chosen_by_its_varying_axis() -> None:
    listed = model((1, 8, None), enumerated=((1, 8, 1), (1, 8, 4)))
    assert input_shapes(listed, 4) == ({"x": (1, 8, 4)}, True)
    with pytest.raises(ExecutionError, match=re.escape("takes the shapes [1, 8, 1], [1, 8, 4].")):
        input_shapes(listed, 2)


@pytest.mark.parametrize("tokens", [0, 5])
def test_a_t_out_of_range_is_refused(tokens: int) -> None:
    with pytest.raises(ExecutionError, match=f"T is {tokens}, and input 'x' takes 1 to 4"):
        input_shapes(model((1, 8, None), ranges=((1, 1), (8, 8), (1, 4))), tokens)


def test_an_open_shape_without_a_declaration_is_refused() -> None:
    with pytest.raises(ExecutionError, match="input 'x' has the open shape"):
        input_shapes(model((1, 8, None), shape=()), 1)


def test_the_largest_t_of_all_inputs() -> None:
    assert largest(model((1, 8, None), ranges=((1, 1), (8, 8), (1, 4))), 64) == 4
    assert largest(model((1, 8, None), ranges=((1, 1), (8, 8), (1, None))), 64) == 64
    assert largest(model((1, 8, None), enumerated=((1, 8, 1), (1, 8, 16))), 64) == 16
    assert largest(model((1, 8, 5)), 64) == 1
