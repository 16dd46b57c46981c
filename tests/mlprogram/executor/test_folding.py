"""What follows from constants alone is computed when a session is prepared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram.packages import Program


def session(program: Program, tmp_path: Path) -> Session:
    return Session(read_model(program.save(tmp_path)))


def test_constants_are_folded(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (2,))
    program.const("a", [1.0, 2.0], "FLOAT32")
    program.op("add", "b", shape=(2,), x="a", y="a")
    program.op("mul", "c", shape=(2,), x="b", y="a")
    program.op("add", "y", shape=(2,), x="x", y="c")
    program.output("y")
    prepared = session(program, tmp_path)
    assert prepared.computed == ("y",)
    assert prepared.predict({"x": np.float32([1, 1])})["y"].tolist() == [3, 9]
    assert prepared.predict({"x": np.float32([0, 0])}, outputs=["c"])["c"].tolist() == [2, 8]


def test_random_numbers_and_large_results_are_not_folded(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1,))
    program.const("shape", [2], "INT32")
    program.const("large", [2048, 1024], "INT32")
    program.const("value", 1.0, "FLOAT32")
    operation = program.op("random_normal", "r", shape=(2,))
    operation.inputs["shape"].arguments.add().name = "shape"
    operation = program.op("fill", "f", shape=(2048, 1024), value="value")
    operation.inputs["shape"].arguments.add().name = "large"
    program.output("r")
    assert session(program, tmp_path).computed == ("r", "f")


def test_a_constant_that_cannot_be_computed(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (1,))
    program.const("a", [1.0, 2.0], "FLOAT32")
    program.const("b", [1.0, 2.0, 3.0], "FLOAT32")
    program.op("add", "c", shape=(2,), x="a", y="b")
    program.output("c")
    with pytest.raises(
        ExecutionError,
        match=r"add 'c' cannot be computed: shape mismatch: objects cannot be broadcast",
    ):
        session(program, tmp_path)
