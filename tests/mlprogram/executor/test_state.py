"""States outlive a prediction, and belong to whoever made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.state import State
from pytest_ane.mlprogram.records import DType, TensorType
from tests.mlprogram.executor.programs import session


@pytest.fixture(scope="module")
def accumulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`total += x; y = total * 2`, as torch writes it."""
    ct = import_coremltools()
    import torch

    class Accumulator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1, 3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * 2

    path = tmp_path_factory.mktemp("state") / "accumulator.mlpackage"
    with converter_notes():
        traced = torch.jit.trace(Accumulator().eval(), torch.zeros(1, 3))
        ct.convert(
            traced,
            inputs=[ct.TensorType("x", (1, 3), dtype=np.float16)],
            outputs=[ct.TensorType("y", dtype=np.float16)],
            states=[ct.StateType(ct.TensorType(shape=(1, 3), dtype=np.float16), "total")],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))
    return path


X = {"x": np.float32([[1, 2, 3]])}


def test_a_state_is_read_and_written(accumulator: Path) -> None:
    prepared = session(accumulator)
    state = prepared.make_state()
    assert prepared.predict(X, state)["y"].tolist() == [[2, 4, 6]]
    assert prepared.predict(X, state)["y"].tolist() == [[4, 8, 12]]
    assert state["total"].read().tolist() == [[2, 4, 6]]


def test_states_do_not_share(accumulator: Path) -> None:
    prepared = session(accumulator)
    one, other = prepared.make_state(), prepared.make_state()
    prepared.predict(X, one)
    assert other["total"].read().tolist() == [[0, 0, 0]]


def test_a_state_may_be_written_by_the_caller(accumulator: Path) -> None:
    prepared = session(accumulator)
    state = prepared.make_state()
    state["total"].write(np.float32([[10, 10, 2049]]))
    assert state["total"].read().tolist() == [[10, 10, 2048]]
    assert prepared.predict(X, state)["y"].tolist() == [[22, 24, 4104]]


def test_a_model_with_states_needs_one(accumulator: Path) -> None:
    prepared = session(accumulator)
    with pytest.raises(ExecutionError, match=r"keeps states \(total\); pass what make_state\(\)"):
        prepared.predict(X)
    state = prepared.make_state()
    del state["total"]
    with pytest.raises(ExecutionError, match=r"states none were given, the model's are total\."):
        prepared.predict(X, state)


def test_a_state_keeps_its_shape() -> None:
    state = State(TensorType(DType.FP16, (2, 3)))
    with pytest.raises(ValueError, match=r"fp16\[2,3\] cannot take shape \[3, 2\]"):
        state.write(np.zeros((3, 2)))


def test_a_state_of_open_shape_cannot_be_made() -> None:
    with pytest.raises(ExecutionError, match="open shape"):
        State(TensorType(DType.FP16, (2, None)))


def test_a_state_of_another_kind(accumulator: Path) -> None:
    with pytest.raises(ExecutionError, match="state is of type dict; pass what make_state"):
        session(accumulator).predict(X, {"total": np.zeros((1, 3))})  # type: ignore[arg-type]


def test_a_state_s_value_cannot_be_written_to(accumulator: Path) -> None:
    prepared = session(accumulator)
    state = prepared.make_state()
    prepared.predict(X, state)
    with pytest.raises(ValueError, match="read-only"):
        state["total"].read()[...] = 5
