"""`MLModel.predict` as test files use it; run by `test_served.py` with `-p pytest_ane.mac.predict`.

Nothing here knows of pytest-ane: but for the words of messages, macOS does the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import pytest
import torch
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from PIL import Image

from pytest_ane.mlprogram.errors import AneError

OPTIONS = {"minimum_deployment_target": ct.target.iOS18, "compute_precision": ct.precision.FLOAT32}
RNG = np.random.default_rng(0)


def doubling(shape: tuple[Any, ...] = (1, 3), factor: float = 2.0) -> Any:
    """A program `y = factor * x`."""

    @mb.program(input_specs=[mb.TensorSpec(shape=shape)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.mul(x=x, y=np.float32(factor), name="y")

    return program


def converted(program: Any, **options: Any) -> Any:
    return ct.convert(program, **{**OPTIONS, **options})


def test_a_prediction() -> None:
    model = converted(doubling())
    x = np.array([[1, 2, 3]], np.float32)
    assert model.predict({"x": x})["y"].tolist() == [[2, 4, 6]]
    assert model.predict({"x": [[1, 2, 3]]})["y"].dtype == np.float32


@pytest.mark.parametrize("labels", [["ant", "bee", "cat"], [10, 20, 30]])
def test_a_classifier(labels: list[Any]) -> None:
    @mb.program(input_specs=[mb.TensorSpec((1, 3))], opset_version=ct.target.iOS17)
    def program(x: Any) -> Any:
        return mb.softmax(x=x, axis=-1, name="p")

    model = converted(program, classifier_config=ct.ClassifierConfig(labels))
    outputs = model.predict({"x": np.array([[0, 5, 1]])})
    assert outputs["classLabel"] == labels[1]
    assert type(outputs["classLabel"]) is type(labels[1])
    probabilities = outputs["classLabel_probs"]
    assert list(probabilities) == labels
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
    assert {type(key) for key in probabilities} == {type(labels[0])}
    assert {type(value) for value in probabilities.values()} == {float}


IMAGES = {
    ct.colorlayout.RGB: ("RGB", 3),
    ct.colorlayout.BGR: ("RGB", 3),
    ct.colorlayout.GRAYSCALE: ("L", 1),
    ct.colorlayout.GRAYSCALE_FLOAT16: ("F", 1),
}


@pytest.mark.parametrize("layout", list(IMAGES), ids=lambda layout: layout.value)
def test_images(layout: Any) -> None:
    """A picture turned by 180 degrees; colours twice, so that each layout is met both ways."""
    mode, channels = IMAGES[layout]
    shape = (1, channels, 4, 6)

    class Turn(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.flip(x, (2, 3))

    model = ct.convert(
        torch.jit.trace(Turn(), torch.zeros(shape)),
        inputs=[ct.ImageType("x", shape, color_layout=layout)],
        outputs=[ct.ImageType("y", color_layout=layout)],
        **OPTIONS,
    )
    size = (4, 6, 3) if channels == 3 else (4, 6)
    pixels = RNG.integers(0, 256, size).astype(np.float32 if mode == "F" else np.uint8)
    image = Image.fromarray(pixels)
    assert image.mode == mode
    turned = model.predict({"x": image})["y"]
    assert turned.mode == ("RGBA" if mode == "RGB" else mode)
    np.testing.assert_array_equal(turned.convert(mode), pixels[::-1, ::-1])

    with pytest.raises(RuntimeError, match=r"input 'x' has shape \[6, 4.*; it takes a PIL image"):
        model.predict({"x": image.resize((4, 6))})


def test_a_state() -> None:
    @mb.program(
        input_specs=[mb.TensorSpec((1,), types.fp16), mb.StateTensorSpec((1,), types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def program(x: Any, total: Any) -> Any:
        new = mb.add(x=mb.read_state(input=total), y=x)
        mb.coreml_update_state(state=total, value=new)
        return mb.identity(x=new, name="y")

    model = ct.convert(program, minimum_deployment_target=ct.target.iOS18)
    first, second = model.make_state(), model.make_state()
    x = {"x": np.array([2.0])}
    assert [model.predict(dict(x), first)["y"][0] for _ in range(3)] == [2, 4, 6]
    assert model.predict(dict(x), second)["y"][0] == 2
    with pytest.raises(RuntimeError, match="keeps states"):
        model.predict(dict(x))


def test_a_pipeline(tmp_path: Path) -> None:
    weights = RNG.standard_normal((2, 64, 64)).astype(np.float32)
    models = []
    for i, weight in enumerate(weights):
        module = torch.nn.Linear(64, 64, bias=False)
        module.weight.data = torch.from_numpy(weight)
        model = ct.convert(
            torch.jit.trace(module, torch.zeros(1, 64)),
            inputs=[ct.TensorType(f"v{i}", (1, 64))],
            outputs=[ct.TensorType(f"v{i + 1}")],
            **OPTIONS,
        )
        models.append(model)
    pipeline = ct.utils.make_pipeline(*models)
    x = RNG.standard_normal((1, 64)).astype(np.float32)
    expected = x @ weights[0].T @ weights[1].T
    np.testing.assert_allclose(pipeline.predict({"v0": x})["v2"], expected, rtol=1e-4, atol=1e-4)
    pipeline.save(str(tmp_path / "p.mlpackage"))
    again = ct.models.MLModel(str(tmp_path / "p.mlpackage"))
    assert list(again.predict({"v0": x})) == ["v2"]
    with pytest.raises(RuntimeError, match=r"input 'v0' is missing; it takes fp32 \[1, 64\]\.$"):
        again.predict({})


def test_several_functions(tmp_path: Path) -> None:
    description = ct.utils.MultiFunctionDescriptor()
    for name, factor in (("double", 2.0), ("triple", 3.0)):
        converted(doubling(factor=factor)).save(str(tmp_path / f"{name}.mlpackage"))
        description.add_function(str(tmp_path / f"{name}.mlpackage"), "main", name)
    description.default_function_name = "double"
    package = str(tmp_path / "both.mlpackage")
    ct.utils.save_multifunction(description, package)
    x = {"x": np.ones((1, 3))}
    assert ct.models.MLModel(package).predict(dict(x))["y"][0, 0] == 2
    assert ct.models.MLModel(package, function_name="triple").predict(dict(x))["y"][0, 0] == 3
    with pytest.raises(ValueError, match="half"):
        ct.models.MLModel(package, function_name="half")
    compiled = ct.models.CompiledMLModel(package, function_name="half")
    with pytest.raises(AneError, match=r"has no function 'half'; it has double, triple\.$"):
        compiled.predict(dict(x))


def test_wrong_inputs() -> None:
    model = converted(doubling())
    with pytest.raises(KeyError, match="z"):
        model.predict({"z": np.ones((1, 3))})
    with pytest.raises(RuntimeError, match=r"input 'x' is missing; it takes fp32 \[1, 3\]\.$"):
        model.predict({})
    with pytest.raises(RuntimeError, match=r"has shape \[3\]; it takes fp32 \[1, 3\]\.$"):
        model.predict({"x": np.ones(3)})
    with pytest.raises(RuntimeError, match="'x' is an array of <U1, not an array of numbers"):
        model.predict({"x": np.array([["a", "b", "c"]])})
    with pytest.raises(RuntimeError, match="'x' is an array of object, not an array of numbers"):
        model.predict({"x": None})


def linear() -> Any:
    """A program with a weight of 4096 elements, in its weights file."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 64))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        weight = RNG.standard_normal((64, 64)).astype(np.float32)
        return mb.linear(x=x, weight=weight, name="y")

    return converted(program)


def test_compiling_and_loading_what_was_compiled(tmp_path: Path) -> None:
    model = linear()
    path = tmp_path / "linear.mlpackage"
    model.save(str(path))
    target = str(tmp_path / "linear.mlmodelc")
    assert ct.utils.compile_model(str(path), target) == target
    x = {"x": np.ones((1, 64), np.float32)}
    expected = model.predict(dict(x))
    for loaded in (
        ct.models.CompiledMLModel(target),
        ct.models.CompiledMLModel(model.get_compiled_model_path()),
    ):
        for name, y in loaded.predict(dict(x)).items():
            np.testing.assert_array_equal(y, expected[name])


def test_a_plan_says_that_all_runs_on_this_cpu(tmp_path: Path) -> None:
    from coremltools.models.compute_device import MLComputeDevice, MLCPUComputeDevice
    from coremltools.models.compute_plan import MLComputePlan

    model = linear()
    plan = MLComputePlan.load_from_path(model.get_compiled_model_path())
    operations = plan.model_structure.program.functions["main"].block.operations
    usages = {
        op.operator_name: plan.get_compute_device_usage_for_mlprogram_operation(op)
        for op in operations
    }
    assert usages.pop("const") is None
    assert usages
    for usage in usages.values():
        assert isinstance(usage.preferred_compute_device, MLCPUComputeDevice)
    assert [type(d) for d in MLComputeDevice.get_all_compute_devices()] == [MLCPUComputeDevice]


def test_an_asset_from_memory() -> None:
    from coremltools.models.model import MLModelAsset

    model = linear()
    weights = Path(model.weights_dir) / "weight.bin"
    blobs = {"weights/weight.bin": weights.read_bytes()}
    asset = MLModelAsset.from_memory(model.get_spec().SerializeToString(), blobs)
    loaded = ct.models.CompiledMLModel.from_asset(asset)
    x = {"x": np.ones((1, 64), np.float32)}
    for name, y in loaded.predict(dict(x)).items():
        np.testing.assert_array_equal(y, model.predict(dict(x))[name])
