"""States as operations; in whole programs they are in `tests/reference/test_state.py`."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import DType, TensorType
from pytest_ane.reference import eval_op
from pytest_ane.reference.state import State


def test_what_is_written_is_read() -> None:
    state = State(TensorType(DType.FP16, (2,)))
    assert eval_op("read_state", input=state).tolist() == [0, 0]
    assert eval_op("write_state", input=state, data=np.float32([1, 2])) == ()
    assert eval_op("read_state", input=state).tolist() == [1, 2]


def test_a_state_is_its_own() -> None:
    """Writing to the array that was handed over does not change the state."""
    state, data = State(TensorType(DType.FP16, (2,))), np.float32([1, 2])
    eval_op("write_state", input=state, data=data)
    data[:] = 9
    assert eval_op("read_state", input=state).tolist() == [1, 2]


def test_another_shape_is_refused() -> None:
    state = State(TensorType(DType.FP16, (2,)))
    with pytest.raises(ExecutionError, match=r"fp16\[2\] cannot take shape \[3\]"):
        eval_op("write_state", input=state, data=np.zeros(3))


def test_states_are_of_ios_18() -> None:
    with pytest.raises(ExecutionError, match="'read_state' is not implemented for opset iOS17"):
        eval_op("read_state", opset="iOS17", input=State(TensorType(DType.FP16, (2,))))
