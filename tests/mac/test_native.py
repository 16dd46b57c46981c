"""The native module itself, on packages written by hand: no coremltools is imported."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mac import _native as native
from pytest_ane.mac import predict
from pytest_ane.mac._native import declared_inputs, returned_outputs
from pytest_ane.mlprogram.errors import AneError, ExecutionError
from pytest_ane.mlprogram.records import DType, Feature, Pipeline
from tests.backends.coreml.test_runner import counter
from tests.mlprogram.executor.ane.test_simulation import program
from tests.mlprogram.packages import doubling

X = np.ones((2, 3), np.float32)


def proxy(package: Path, function: str = "") -> Any:
    return native._MLModelProxy(str(package), "CPU_ONLY", function, {}, None)


def test_a_prediction_and_how_long_it_took(tmp_path: Path) -> None:
    model = proxy(doubling().save(tmp_path))
    assert model.get_load_duration_in_nano_seconds() > 0
    assert model.get_last_predict_duration_in_nano_seconds() is None
    assert model.predict({"x": X})["y"].tolist() == [[2, 2, 2]] * 2
    assert model.get_last_predict_duration_in_nano_seconds() > 0


@pytest.mark.parametrize(
    ("units", "y"), [("ALL", 2050), ("CPU_AND_NE", 2050), ("CPU_ONLY", 2048), ("CPU_AND_GPU", 2048)]
)
def test_the_anes_arithmetic_is_that_of_models_that_may_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: str, y: float
) -> None:
    monkeypatch.setattr(native, "settings", native.Settings("ane"))
    package = str(program("add", (1, 1), y=1.0).save(tmp_path))
    for _ in range(2):
        model = native._MLModelProxy(package, units)
        assert model.predict({"x": np.float16([[2048]])})["y"].tolist() == [[y]]
    assert predict.rule_shares().operations == ({"recorded": 2} if y == 2050 else {})


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


def test_states_are_read_and_written(tmp_path: Path) -> None:
    model = proxy(counter(tmp_path))
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
    assert proxy(compiled).predict({"x": X})["y"].tolist() == [[2, 2, 2]] * 2
    del model
    assert not compiled.exists()


def test_compiling_a_path(tmp_path: Path) -> None:
    compiled = Path(native._MLModelProxy.compileModel(str(doubling().save(tmp_path))))
    assert (compiled.suffix, compiled.parent) == (".mlmodelc", Path(tempfile.gettempdir()))
    assert proxy(compiled).predict({"x": X})["y"].shape == (2, 3)
    with pytest.raises(RuntimeError, match=r"Error compiling model: .*no such folder"):
        native._MLModelProxy.compileModel(str(tmp_path / "gone.mlpackage"))


def test_which_backend_answers_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native.announce.cache_clear()
    model = proxy(doubling().save(tmp_path))
    for _ in range(2):
        model.predict({"x": X})
    err = capsys.readouterr().err
    assert err == "coremltools: predictions by pytest-ane's CPU executor (not Core ML)\n"


def described(*, inputs: tuple[Feature, ...] = (), outputs: tuple[Feature, ...] = ()) -> Pipeline:
    return Pipeline("P", 9, inputs, outputs, ())


def take(dtype: DType, value: Any, shape: tuple[int, ...] = (1, 2), **options: Any) -> Any:
    features = (Feature("x", dtype, shape, **options),)
    return declared_inputs(described(inputs=features), {"x": value})["x"]


def give(feature: Feature, value: Any) -> Any:
    return returned_outputs(described(outputs=(feature,)), {feature.name: value})[feature.name]


@pytest.mark.parametrize(
    ("dtype", "carried"),
    [(DType.FP16, "float32"), (DType.FP64, "float64"), (DType.INT32, "int32"),
     (DType.INT8, "int8")],
)  # fmt: skip
def test_any_numbers_are_taken_and_come_back_as_declared(dtype: DType, carried: str) -> None:
    for value in ([[1, 2]], np.array([[1, 2]], np.int64), np.array([[1.0, 2.0]])):
        array = take(dtype, value)
        assert (array.dtype, array.tolist()) == (carried, [[1, 2]])
    value = np.ones(2, carried)
    array = give(Feature("y", dtype, (2,)), value)
    assert array.dtype == carried
    assert not np.shares_memory(array, value)


def test_one_number_has_the_declared_shape() -> None:
    assert take(DType.FP32, 3.0, (1,)).tolist() == [3]
    assert take(DType.FP32, [3.0], (1, 1)).tolist() == [[3]]
    assert take(DType.FP32, 3.0, (1,), ranges=((1, 4),)).shape == ()
    assert give(Feature("y", DType.FP32, ()), np.float32(3) * np.ones(())).tolist() == [3]


@pytest.mark.parametrize(
    ("value", "what"),
    [("7", "an array of <U1"), (None, "an array of object"), (1j, "an array of complex128"),
     ([[1], [2, 3]], "list")],
)  # fmt: skip
def test_what_is_no_array_of_numbers(value: Any, what: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        take(DType.FP32, value)
    assert str(caught.value) == f"P: input 'x' is {what}, not an array of numbers."


@pytest.mark.parametrize(
    ("kind", "found", "label"),
    [("stringType", np.array("bee"), "bee"), ("int64Type", np.array(7), 7), ("int64Type", 7, 7)],
)
def test_labels(kind: str, found: Any, label: Any) -> None:
    given_back = give(Feature("y", DType.STRING, (), kind=kind), found)
    assert (given_back, type(given_back)) == (label, type(label))


def test_an_image_that_is_none_and_one_without_pil(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = Feature("y", DType.UINT8, (1, 2), kind="image", color="RGB")
    with pytest.raises(ExecutionError, match=r"^P: output 'y' has shape .*\[1, 3, H, W"):
        give(feature, np.zeros((2, 2), np.float32))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ExecutionError, match="output 'y' is an image; run: pip install pillow"):
        give(feature, np.zeros((1, 3, 1, 2), np.float32))
