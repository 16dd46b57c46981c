"""Shapes of inputs at a T, and of results that are not computed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import eval_op
from pytest_ane.mlprogram.executor.shapes import STAND_INS, input_shapes, token_range
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import (
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
from pytest_ane.tools._costs import count_costs
from tests.packages import save_conv


def model(dims: tuple[int | None, ...], **feature: Any) -> MLModel:
    kind = TensorType(DType.FP16, dims)
    state = StateType(TensorType(DType.FP16, (1, 4)))
    inputs = (Named("x", kind), Named("cache", state))
    function = Function("main", "CoreML8", inputs, Block((), (), ("x",)))
    declared = Feature("x", DType.FP16, **{"shape": (1, 8, 1), **feature})
    return MLModel("m.mlpackage", "", 9, (declared,), (), (), Program({"main": function}))


def test_shapes_at_a_t() -> None:
    flexible = model((1, 8, None), ranges=((1, 1), (8, 8), (1, 4)))
    assert input_shapes(flexible, 3) == ({"x": (1, 8, 3)}, True)
    unbounded = model((1, 8, None), ranges=((1, 1), (8, 8), (1, None)))
    assert input_shapes(unbounded, 900) == ({"x": (1, 8, 900)}, True)
    assert input_shapes(model((1, 8, 5)), 3) == ({"x": (1, 8, 5)}, False)
    listed = model((1, 8, None), enumerated=((1, 8, 1), (1, 8, 4)))
    assert input_shapes(listed, 4) == ({"x": (1, 8, 4)}, True)
    with pytest.raises(ExecutionError, match=re.escape("takes the shapes [1, 8, 1], [1, 8, 4].")):
        input_shapes(listed, 2)
    with pytest.raises(ExecutionError, match="input 'x' has the open shape"):
        input_shapes(model((1, 8, None), shape=()), 1)


@pytest.mark.parametrize("tokens", [0, 5])
def test_a_t_out_of_range_is_refused(tokens: int) -> None:
    with pytest.raises(ExecutionError, match=f"T is {tokens}, and input 'x' takes 1 to 4"):
        input_shapes(model((1, 8, None), ranges=((1, 1), (8, 8), (1, 4))), tokens)


def test_the_least_and_the_greatest_t_of_all_inputs() -> None:
    assert token_range(model((1, 8, None), ranges=((1, 1), (8, 8), (1, 4))), 64) == (1, 4)
    assert token_range(model((1, 8, None), ranges=((1, 1), (8, 8), (2, None))), 64) == (2, 64)
    assert token_range(model((1, 8, None), ranges=((1, 1), (8, 8), (80, 90))), 64) == (80, 80)
    assert token_range(model((1, 8, None), enumerated=((1, 8, 4), (1, 8, 16))), 64) == (4, 16)
    assert token_range(model((1, 8, 5)), 64) == (1, 1)


def test_a_product_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stood_in: list[tuple[int, ...]] = []
    conv = STAND_INS["conv"]

    def counted(**parameters: Any) -> Any:
        stood_in.append(np.shape(parameters["weight"]))
        return conv(**parameters)

    monkeypatch.setitem(cast("dict[str, Any]", STAND_INS), "conv", counted)
    save_conv(tmp_path / "conv.mlpackage")
    count_costs(read_model(tmp_path / "conv.mlpackage"))
    assert len(stood_in) == 1


def check(op: str, **parameters: Any) -> None:
    assert STAND_INS[op](**parameters).shape == eval_op(op, **parameters).shape


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_conv(data: st.DataObject) -> None:
    groups, each = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(2)]
    check(
        "conv",
        x=np.ones((2, groups * each, 7, 6), np.float32),
        weight=np.ones((groups * 3, each, *kernel), np.float32),
        bias=np.ones(groups * 3, np.float32),
        groups=groups,
        pad_type=data.draw(st.sampled_from(["valid", "same", "same_lower", "custom"])),
        pad=np.array([1, 0, 2, 1], np.int32),
        strides=np.array([data.draw(st.integers(1, 2)), 1], np.int32),
        dilations=np.array([1, data.draw(st.integers(1, 2))], np.int32),
    )


@pytest.mark.parametrize(
    ("x", "y", "turned"),
    [
        ((2, 3), (3, 4), (False, False)),
        ((3, 2), (4, 3), (True, True)),
        ((5, 1, 2, 3), (6, 3, 4), (False, False)),
        ((3,), (5, 3, 4), (False, False)),
        ((2, 3), (3,), (False, True)),
        ((3,), (3,), (True, True)),
    ],
)
def test_matmul(x: tuple[int, ...], y: tuple[int, ...], turned: tuple[bool, bool]) -> None:
    ones = [np.ones(shape, np.float32) for shape in (x, y)]
    check("matmul", x=ones[0], y=ones[1], transpose_x=turned[0], transpose_y=turned[1])
