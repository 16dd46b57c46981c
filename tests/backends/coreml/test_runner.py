"""What goes into Core ML and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.backends.coreml.backend import CoreMLRunner, _load
from pytest_ane.mac.first_contact import package
from pytest_ane.mac.testing import Failure, Script
from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.model import read_any, read_model
from tests.backends.coreml.conftest import Backend
from tests.detectors import detector
from tests.mlprogram.packages import Program, doubling

FP16, INT32 = 65552, 131104


class Native:
    """A loaded model that notes what it is given."""

    def __init__(self, **outputs: Any) -> None:
        self.outputs = outputs
        self.given: dict[str, Any] = {}

    def predict(self, data: dict[str, Any], state: Any = None) -> dict[str, Any]:
        self.given = data
        return self.outputs


def mixed(folder: Path) -> Path:
    """`h [1, 4]` in fp16 and `i [1]` in int32; `y`, twice `h`, in fp16."""
    program = Program()
    program.input("h", (1, 4), "FLOAT16", kind=FP16)
    program.input("i", (1,), "INT32", kind=INT32)
    program.op("add", "y", "FLOAT16", (1, 4), x="h", y="h")
    program.output("y", FP16)
    return program.save(folder)


def test_inputs_have_the_declared_types_and_undeclared_ones_stay_out(tmp_path: Path) -> None:
    native = Native(y=np.zeros((1, 4), np.float32))
    runner = CoreMLRunner(read_model(mixed(tmp_path)), native)
    hidden = np.array([[1 / 3, 1e-9, 1e6, np.nan]])
    runner.predict({"h": hidden, "i": np.array([7], np.int64), "mask": np.zeros(3)})
    assert list(native.given) == ["h", "i"]
    assert (native.given["h"].dtype, native.given["i"].dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(
        native.given["h"], np.array([[np.float16(1 / 3), 0, np.inf, np.nan]], np.float32)
    )
    runner.predict({"h": np.ones((4, 2), np.float16).T[:1], "i": np.ones(1, np.int32)})
    assert native.given["h"].flags.c_contiguous


def test_a_pipeline_runs_whole_and_its_thresholds_may_be_left_out(tmp_path: Path) -> None:
    native = Native(confidence=np.zeros((0, 3)), coordinates=np.zeros((0, 4)))
    runner = CoreMLRunner(read_any(detector(tmp_path / "d.mlpackage")), native)
    pixels = np.zeros((32, 32, 3), np.uint8)
    outputs = runner.predict({"image": pixels})
    assert [*outputs] == ["confidence", "coordinates"]
    assert [*native.given] == ["image"]
    runner.predict({"image": pixels, "iouThreshold": np.float32(0.25)})
    assert native.given["iouThreshold"] == 0.25
    assert runner.make_state() is None


def test_a_part_is_the_folder_of_its_number() -> None:
    opened: list[str] = []
    device: Any = SimpleNamespace(load=lambda subject, path, *rest: opened.append(path))
    part: Any = SimpleNamespace(path="p", part="model1", function="", inputs=(), outputs=())
    whole: Any = SimpleNamespace(path="p", inputs=(), outputs=())
    with patch("pytest_ane.backends.coreml.backend.CoreMLRunner"):
        for model in (part, whole):
            _load(model, Path("c.mlmodelc"), "ALL", device)
    assert opened == ["c.mlmodelc/model1", "c.mlmodelc"]


def test_outputs_are_float32_of_the_program_s_names_and_nan_stays(tmp_path: Path) -> None:
    native = Native(y=np.array([[np.nan, np.inf, -0.0, 2]], np.float64), extra=np.zeros(1))
    runner = CoreMLRunner(read_model(mixed(tmp_path)), native)
    found = runner.predict({"h": np.zeros((1, 4)), "i": np.zeros(1, int)})
    assert list(found) == ["y"]
    assert found["y"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], [[np.nan, np.inf, -0.0, 2]])


def test_an_output_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    runner = CoreMLRunner(read_model(mixed(tmp_path)), Native(z=np.zeros(1)))
    with pytest.raises(ExecutionError, match=r"gave no output 'y', but z; the compiled model is"):
        runner.predict({"h": np.zeros((1, 4)), "i": np.zeros(1, int)})


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"h": np.zeros((1, 4))}, r"input 'i' is missing; it takes int32 \[1\]\."),
        ({"h": np.zeros((1, 5)), "i": np.zeros(1, int)}, r"has shape \[1, 5\]; it takes fp16"),
        ({"h": np.zeros((1, 4)), "i": np.zeros(1)}, "has dtype float64; it takes int32"),
    ],
)
def test_what_does_not_fit_is_one_sentence_as_on_every_backend(
    tmp_path: Path, inputs: dict[str, Any], text: str
) -> None:
    with pytest.raises(ExecutionError, match=text):
        CoreMLRunner(read_model(mixed(tmp_path)), Native()).predict(inputs)


def test_images_are_handed_over_as_they_are_and_pixels_as_images(tmp_path: Path) -> None:
    program = doubling()
    image = program.model.description.input.add()
    image.name = "picture"
    image.type.imageType.width = image.type.imageType.height = 2
    image.type.imageType.colorSpace = 20
    named = program.function.inputs.add()
    named.CopyFrom(program.function.inputs[0])
    named.name = "picture"
    for dimension, size in zip(named.type.tensorType.dimensions, (3, 2), strict=False):
        dimension.constant.size = size
    native, picture = Native(y=np.zeros((2, 3), np.float32)), object()
    runner = CoreMLRunner(read_model(program.save(tmp_path)), native)
    x = np.zeros((2, 3), np.float32)
    runner.predict({"x": x, "picture": picture})
    assert native.given["picture"] is picture
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    runner.predict({"x": x, "picture": pixels})
    assert native.given["picture"].mode == "RGB"
    assert np.array_equal(np.asarray(native.given["picture"]), pixels)
    for wrong, why in (
        (pixels.astype(np.int32), "has dtype int32"),
        (pixels[:1], r"has shape \[1, 2, 3\]"),
        (pixels[..., 0], r"has shape \[2, 2\]"),
    ):
        with pytest.raises(ExecutionError, match=f"input 'picture' {why}; it takes a PIL image of"):
            runner.predict({"x": x, "picture": wrong})


def test_int8_outputs_are_refused_by_name(backend: Backend, tmp_path: Path) -> None:
    path = package("int8", tmp_path)
    with pytest.raises(ExecutionError, match="output 'y' is int8, which coremltools reads with"):
        backend().load(path)
    values = np.arange(16, dtype=np.float32)[None] - 8
    (output,) = CpuBackend().load(path).predict({"x": values}).values()
    assert np.array_equal(output, values)


def test_the_replayed_module_reads_int8_as_the_native_one(mac: Any, tmp_path: Path) -> None:
    mac(Script())
    model = import_coremltools().models.MLModel(str(package("int8", tmp_path)))
    (output,) = model.predict({"x": np.arange(16, dtype=np.float32)[None]}).values()
    assert output.reshape(-1).tolist() == [0, 8] + [0] * 14


def test_a_failed_prediction_is_explained(backend: Backend, tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    text = "ANEProgramProcessRequestDirect() Failed with status=0x1d : Program Inference error"
    runner = backend(Failure("predict", text)).load(package)
    x = {"x": np.ones((2, 3), np.float32)}
    with pytest.raises(ExecutionError) as raised:
        runner.predict(x)
    assert str(raised.value) == (
        f"{package}: Core ML could not predict: {text} (A prediction failed on the ANE at run "
        "time; see whether it runs with --ane-compute-units=CPU_ONLY)."
    )
    assert runner.predict(x)["y"].tolist() == [[2, 2, 2]] * 2


def counter(folder: Path) -> Path:
    """`s += x; y = s`, with a state `s [2]`."""
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
    program.op("add", "sum", shape=(2,), x="r", y="x")
    program.op("write_state", "w", shape=(2,), input="s", data="sum").outputs.pop()
    program.op("identity", "y", shape=(2,), x="sum")
    program.output("y")
    return program.save(folder)


def test_states_go_along_and_do_not_share(backend: Backend, tmp_path: Path) -> None:
    runner = backend().load(counter(tmp_path))
    one, other = runner.make_state(), runner.make_state()
    ones, twos = {"x": np.ones(2, np.float32)}, {"x": np.full(2, 2, np.float32)}
    first, second = runner.predict_all([ones, twos], [one, other])
    assert (first["y"].tolist(), second["y"].tolist()) == ([1, 1], [2, 2])
    assert runner.predict(ones, one)["y"].tolist() == [2, 2]
    assert other.read_state("s").tolist() == [2, 2]


def test_states_that_core_ml_does_not_make_give_or_take_are_one_sentence(tmp_path: Path) -> None:
    class Broken:
        def make_state(self) -> None:
            raise RuntimeError("out of memory.")

        def read_state(self, name: str) -> None:
            raise RuntimeError("no such state.")

        def write_state(self, name: str, value: object) -> None:
            raise RuntimeError("wrong shape.")

    runner = CoreMLRunner(read_model(counter(tmp_path)), Broken())
    with pytest.raises(ExecutionError, match=r"Core ML made no states: out of memory\.$"):
        runner.make_state()
    with pytest.raises(ExecutionError, match=r"Core ML could not read a state: no such state\.$"):
        runner.read_states(Broken())
    with pytest.raises(ExecutionError, match=r"Core ML could not write a state: wrong shape\.$"):
        runner.write_states(Broken(), {"s": 1})


def test_a_number_is_handed_over_as_one(tmp_path: Path) -> None:
    program = Program()
    program.input("x", ())
    program.model.description.input[0].type.doubleType.SetInParent()
    program.op("add", "y", shape=(), x="x", y="x")
    program.output("y")
    native = Native(y=np.float64(3))
    found = CoreMLRunner(read_model(program.save(tmp_path)), native).predict({"x": 1.5})
    assert native.given == {"x": 1.5}
    assert type(native.given["x"]) is float
    assert found["y"] == 3


# States are copied out and given back, on either backend.

ONES = {"x": np.ones(2, np.float32)}


@pytest.fixture(params=["cpu", "coreml"])
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return CpuBackend if request.param == "cpu" else request.getfixturevalue("backend")


@pytest.mark.parametrize("names", [None, ("s",)])
def test_states_are_given_back(
    make: Callable[[], Any], tmp_path: Path, names: tuple[str, ...] | None
) -> None:
    runner = make().load(counter(tmp_path))
    state = runner.make_state()
    runner.predict(ONES, state)
    kept = runner.read_states(state, names)
    runner.predict(ONES, state)
    assert kept["s"].tolist() == [1, 1]
    runner.write_states(state, kept)
    assert runner.predict(ONES, state)["y"].tolist() == [2, 2]
    assert kept["s"].tolist() == [1, 1]
    assert runner.read_states(state, ()) == {}


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ({"t": np.ones(2)}, "there is no state 't'; states are: s."),
        ({"s": np.ones(3)}, "'s': a state .* cannot take shape \\[3\\]"),
    ],
)
def test_states_that_are_not_the_program_s(
    tmp_path: Path, states: dict[str, np.ndarray], sentence: str
) -> None:
    runner = CpuBackend().load(counter(tmp_path))
    with pytest.raises(ExecutionError, match=sentence):
        runner.write_states(runner.make_state(), states)
