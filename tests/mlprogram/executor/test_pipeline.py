"""Sessions run one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import PipelineSession, Session, open_session
from pytest_ane.mlprogram.model import read_any
from tests.mlprogram.packages import Program, doubling
from tests.mlprogram.pipelines import chain, given, made, stage, three
from tests.mlprogram.test_features import saved

X = np.array([[1.0, 10.0]], np.float32)


def session(program: Program, tmp_path: Path, **options: Any) -> PipelineSession:
    opened = open_session(read_any(saved(program, tmp_path)), **options)
    assert isinstance(opened, PipelineSession)
    return opened


def test_values_pass_by_name(tmp_path: Path) -> None:
    opened = session(three(), tmp_path)
    outputs = opened.predict({"x": X})
    assert {name: y.tolist() for name, y in outputs.items()} == {"c": [[3, 22]], "d": [[6, 60]]}
    assert opened.predict({"x": X}, outputs=["b"])["b"].tolist() == [[2, 20]]
    with pytest.raises(ExecutionError, match=r"no value 'q'; outputs are: b, c, d\.$"):
        opened.predict({"x": X}, outputs=["q"])


def test_one_model_has_an_ordinary_session(tmp_path: Path) -> None:
    assert isinstance(open_session(read_any(doubling().save(tmp_path))), Session)


def test_there_are_no_states(tmp_path: Path) -> None:
    opened = session(three(), tmp_path)
    state = opened.make_state()
    assert not state
    assert opened.predict({"x": X}, state)["d"].tolist() == [[6, 60]]


def test_all_parts_have_the_precision(tmp_path: Path) -> None:
    opened = session(three(), tmp_path, precision="float64")
    assert {part.precision for part in opened.parts} == {"float64"}
    assert opened.predict({"x": X})["d"].dtype == np.float64


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "input 'x' is missing; it takes fp32 [1, 2]."),
        ({"x": X, "b": X}, "no input 'b'; inputs are: x."),
        ({"x": X[0]}, "input 'x' has shape [2]; it takes fp32 [1, 2]."),
    ],
)
def test_wrong_inputs(tmp_path: Path, inputs: Any, sentence: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        session(three(), tmp_path).predict(inputs)
    assert str(caught.value).endswith(f": {sentence}")


def test_pixels_pass_between_parts(tmp_path: Path) -> None:
    """0.3 is no colour: the next part sees 0, as it would see an image."""
    shape = (1, 1, 1, 2)
    a, b = stage("x", "y", 1, shape=shape), stage("y", "z", 10, shape=shape)
    for description in (made(a), given(b)):
        description.type.imageType.width, description.type.imageType.height = 2, 1
        description.type.imageType.colorSpace = 10
    program = chain(a, b, inputs=[given(a)], outputs=[made(b)])
    x = np.array([0.3, 300], np.float32).reshape(shape)
    assert session(program, tmp_path).predict({"x": x})["z"].ravel().tolist() == [0, 2550]
