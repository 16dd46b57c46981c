"""The native module itself, on packages written by hand: no coremltools is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.core.errors import AneError
from pytest_ane.predict import native
from tests.mil.packages import Program, doubling

X = np.ones((2, 3), np.float32)


def proxy(package: Path, function: str = "") -> Any:
    return native._MLModelProxy(str(package), "CPU_ONLY", function, {}, None)


def test_a_prediction_and_how_long_it_took(tmp_path: Path) -> None:
    model = proxy(doubling().save(tmp_path))
    assert model.get_load_duration_in_nano_seconds() > 0
    assert model.get_last_predict_duration_in_nano_seconds() is None
    assert model.predict({"x": X})["y"].tolist() == [[2, 2, 2]] * 2
    assert model.get_last_predict_duration_in_nano_seconds() > 0


def test_a_batch(tmp_path: Path) -> None:
    model = proxy(doubling().save(tmp_path))
    assert [out["y"][0, 0] for out in model.batchPredict([{"x": X}, {"x": 2 * X}])] == [2, 4]
    assert model.batchPredict([]) == []


def test_what_is_wrong_with_inputs_is_a_runtime_error(tmp_path: Path) -> None:
    model = proxy(doubling().save(tmp_path))
    with pytest.raises(RuntimeError, match=r"no input 'z'; inputs are: x\.$"):
        model.predict({"x": X, "z": X})
    with pytest.raises(RuntimeError, match=r"input 'x' is missing; it takes fp32 \[2, 3\]\.$"):
        model.predict({})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: p.op("frobnicate", "z", shape=(2, 3), x="x"), "'frobnicate' is not implemented"),
        (lambda p: p.model.neuralNetwork.SetInParent(), "is a neuralNetwork, not an ML Program"),
    ],
)
def test_what_cannot_be_run_is_said_when_predicting(
    tmp_path: Path, change: Any, sentence: str
) -> None:
    program = doubling()
    change(program)
    model = proxy(program.save(tmp_path))
    for _ in range(2):
        with pytest.raises(AneError, match=sentence):
            model.predict({"x": X})
    with pytest.raises(AneError, match=sentence):
        model.newState()


def test_a_file_of_the_older_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.mlmodel"
    file.write_bytes(b"")
    with pytest.raises(AneError, match=r'again with convert_to="mlprogram"\.$'):
        proxy(file).predict({})


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    assert proxy(package, "main").predict({"x": X})["y"][0, 0] == 2
    with pytest.raises(AneError, match="has one function, main; 'half' is none of it"):
        proxy(package, "half").predict({"x": X})


def test_states_are_read_and_written(tmp_path: Path) -> None:
    program = Program()
    program.input("x", (2,))
    named = program.function.inputs.add()
    named.name = "s"
    named.type.stateType.wrappedType.CopyFrom(program.function.inputs[0].type)
    feature = program.model.description.state.add()
    feature.name = "s"
    feature.type.stateType.arrayType.dataType = 65568
    feature.type.stateType.arrayType.shape.append(2)
    program.op("read_state", "r", shape=(2,), input="s")
    program.op("add", "y", shape=(2,), x="x", y="r")
    program.output("y")
    model = proxy(program.save(tmp_path))
    state = model.newState()
    assert state.read_state("s").tolist() == [0, 0]
    state.write_state("s", np.array([3, 4], np.float32))
    assert model.predict({"x": np.ones(2)}, state)["y"].tolist() == [4, 5]
    with pytest.raises(RuntimeError, match="cannot take shape"):
        state.write_state("s", np.zeros(3))
    with pytest.raises(RuntimeError, match="no state 't'; there are: s"):
        state.read_state("t")


def test_a_prediction_that_fails_begins_as_core_ml_s_message(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Unable to compute the prediction using ML Program"):
        proxy(doubling().save(tmp_path)).predict({})


def test_a_compiled_model_predicts_the_same(tmp_path: Path) -> None:
    model = proxy(doubling().save(tmp_path))
    compiled = Path(model.get_compiled_model_path())
    assert "program(1." in (compiled / "model.mil").read_text()
    np.testing.assert_array_equal(
        proxy(compiled).predict({"x": X})["y"], model.predict({"x": X})["y"]
    )
    del model
    assert not compiled.exists()


def test_compiling_a_path(tmp_path: Path) -> None:
    compiled = Path(native._MLModelProxy.compileModel(str(doubling().save(tmp_path))))
    assert compiled.name == "model.mlmodelc"
    assert proxy(compiled).predict({"x": X})["y"].shape == (2, 3)
    with pytest.raises(RuntimeError, match=r"Error compiling model: .*no such folder"):
        native._MLModelProxy.compileModel(str(tmp_path / "gone.mlpackage"))


def test_which_backend_answers_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native.say_once.cache_clear()
    model = proxy(doubling().save(tmp_path))
    for _ in range(2):
        model.predict({"x": X})
    err = capsys.readouterr().err
    assert err == "coremltools: predictions by pytest-ane's CPU executor (not Core ML)\n"
