"""Compiled models that we write read back as the models they were written from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil import read_model
from pytest_ane.mil.compile import write_compiled
from pytest_ane.mil.same import differences
from tests.mil.packages import Program, doubling


def test_a_compiled_model_is_the_same_model(tmp_path: Path) -> None:
    model = read_model(doubling().save(tmp_path))
    again = read_model(write_compiled(model, tmp_path / "doubling.mlmodelc"))
    assert differences(model, again) == []
    assert (again.inputs, again.outputs, again.states) == (
        model.inputs, model.outputs, model.states,
    )  # fmt: skip
    assert again.specification_version == model.specification_version


def test_flexible_shapes(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (2, 3), "FLOAT16", ranges=((1, 4), (3, 3)), kind=65552)
    program.op("relu", "y", "FLOAT16", (None, 3), x="x")
    program.output("y", 65552)
    model = read_model(program.save(tmp_path))
    again = read_model(write_compiled(model, tmp_path / "flexible.mlmodelc"))
    assert again.inputs == model.inputs
    assert again.inputs[0].ranges == ((1, 4), (3, 3))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    model = read_model(doubling().save(tmp_path))
    with pytest.raises(ProgramError, match=r"taken/x\.mlmodelc: cannot be written"):
        write_compiled(model, tmp_path / "taken" / "x.mlmodelc")


def test_weights_are_those_of_the_package(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    compiled = write_compiled(read_model(package), tmp_path / "doubling.mlmodelc")
    theirs = package / "Data/com.apple.CoreML/weights/weight.bin"
    ours = np.fromfile(compiled / "weights/weight.bin", np.uint8)
    np.testing.assert_array_equal(ours, np.fromfile(theirs, np.uint8))
