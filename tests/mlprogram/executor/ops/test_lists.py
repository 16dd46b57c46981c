"""Lists of tensors, and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session, eval_op
from pytest_ane.mlprogram.executor.ops.lists import State
from pytest_ane.mlprogram.records import DType, TensorType
from tests.mlprogram.executor.programs import written


def made(length: int = 3, *, dynamic: bool = False, shape: tuple[Any, ...] = (2,)) -> Any:
    return eval_op("make_list", elem_shape=shape, init_length=length, dynamic_length=dynamic)


def values(ls: Any) -> list[Any]:
    indices = list(range(len(ls.elements)))
    found: list[Any] = eval_op("list_gather", ls=ls, indices=np.int32(indices)).tolist()
    return found


def test_a_new_list_holds_zeros() -> None:
    assert values(made(2)) == [[0, 0], [0, 0]]
    assert eval_op("list_length", ls=made(2)) == 2
    assert eval_op("list_length", ls=eval_op("make_list", elem_shape=(2,))) == 1


def test_writing_gives_a_new_list() -> None:
    before = made()
    after = eval_op("list_write", ls=before, index=1, value=np.float32([5, 6]))
    assert values(after) == [[0, 0], [5, 6], [0, 0]]
    assert values(before) == [[0, 0], [0, 0], [0, 0]]
    assert eval_op("list_read", ls=after, index=np.array(1)).tolist() == [5, 6]


def test_scattering_and_gathering() -> None:
    rows = np.float32([[1, 2], [3, 4]])
    ls = eval_op("list_scatter", ls=made(), indices=np.int32([2, 0]), value=rows)
    assert values(ls) == [[3, 4], [0, 0], [1, 2]]
    gathered = eval_op("list_gather", ls=ls, indices=np.int32([0, 0, -1]))
    assert gathered.tolist() == [[3, 4], [3, 4], [1, 2]]


def test_a_dynamic_list_grows() -> None:
    ls = eval_op("list_write", ls=made(1, dynamic=True), index=3, value=np.float32([1, 1]))
    assert eval_op("list_length", ls=ls) == 4
    assert values(ls) == [[0, 0], [0, 0], [0, 0], [1, 1]]


def test_a_shape_that_is_known_when_something_is_written() -> None:
    ls = made(2, shape=("n", 2))
    assert eval_op("list_read", ls=ls, index=0).shape == (0, 2)
    ls = eval_op("list_write", ls=ls, index=0, value=np.ones((3, 2), np.float32))
    assert eval_op("list_read", ls=ls, index=1).shape == (3, 2)


@pytest.mark.parametrize(("op", "index"), [("list_write", 3), ("list_write", -1), ("list_read", 3)])
def test_outside_of_a_list_that_does_not_grow(op: str, index: int) -> None:
    value = {"value": np.float32([1, 1])} if op == "list_write" else {}
    with pytest.raises(ExecutionError, match=f"index {index} into a list of 3 elements"):
        eval_op(op, ls=made(), index=index, **value)


def test_what_is_written_is_read() -> None:
    """Writing to the array that was handed over does not change the state."""
    state, data = State(TensorType(DType.FP16, (2,))), np.float32([1, 2])
    assert eval_op("read_state", input=state).tolist() == [0, 0]
    assert eval_op("write_state", input=state, data=data) == ()
    data[:] = 9
    assert eval_op("read_state", input=state).tolist() == [1, 2]


@pytest.fixture
def accumulator(tmp_path: Path) -> Session:
    """`total += x; y = total * 2`."""
    body = """
        tensor<fp16, [1, 3]> old = read_state(input = total);
        tensor<fp16, [1, 3]> sum = add(x = old, y = x);
        write_state(input = total, data = sum);
        tensor<fp16, [1, 3]> y = mul(x = sum, y = fp16(2));
    """
    inputs = "tensor<fp16, [1, 3]> x, state<tensor<fp16, [1, 3]>> total"
    return written(tmp_path / "m.mlmodelc", body, inputs=inputs)


X = {"x": np.float32([[1, 2, 3]])}


def test_a_state_is_read_and_written(accumulator: Session) -> None:
    state, other = accumulator.make_state(), accumulator.make_state()
    assert accumulator.predict(X, state)["y"].tolist() == [[2, 4, 6]]
    assert accumulator.predict(X, state)["y"].tolist() == [[4, 8, 12]]
    assert state["total"].read().tolist() == [[2, 4, 6]]
    assert other["total"].read().tolist() == [[0, 0, 0]]
    with pytest.raises(ValueError, match="read-only"):
        state["total"].read()[...] = 5
    state["total"].write(np.float32([[10, 10, 2049]]))
    assert state["total"].read().tolist() == [[10, 10, 2048]]
    assert accumulator.predict(X, state)["y"].tolist() == [[22, 24, 4104]]


def test_a_model_with_states_needs_one(accumulator: Session) -> None:
    with pytest.raises(ExecutionError, match=r"keeps states \(total\); pass what make_state\(\)"):
        accumulator.predict(X)
    state = accumulator.make_state()
    del state["total"]
    with pytest.raises(ExecutionError, match=r"states none were given, the model's are total\."):
        accumulator.predict(X, state)
