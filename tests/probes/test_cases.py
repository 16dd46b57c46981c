"""Cases of a family's shard and of a package, and outputs that are no plain tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.fidelity import measure
from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.manifest import Probes
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.models.families import Port
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.probes.cases import as_array, package_case, pixel_row, port_rows
from pytest_ane.probes.package import package_cases
from pytest_ane.probes.recording import HiddenProbe, in_steps, kept_rows
from tests.models.families.rotary import plain_rotary
from tests.probes import packages
from tests.probes.packages import save


def test_a_case_of_a_family_s_shard() -> None:
    hidden = np.array([[1, -7, 3], [4, 5, 6]], np.float32)
    expected = hidden * 2
    probe = HiddenProbe("captured", "captured chat T=2", 0, ((0, 2),), hidden, expected)
    case = probe.case(AneLayout("llama", 3, plain_rotary(2, 100.0)))
    assert (case.kind, case.name) == ("captured", "captured chat T=2")
    assert (case.length, case.input_max) == (2, 7.0)
    (inputs,) = case.calls
    assert set(inputs) == {"x", "cos", "sin", "mask"}
    assert case.expected["y"] is expected
    back = case.rows({"y": inputs["x"]})
    np.testing.assert_array_equal(back["y"], hidden)


HIDDEN = np.arange(15, dtype=np.float32).reshape(5, 3)
STATEFUL = AneLayout("llama", 3, plain_rotary(2, 100.0), 8)


def test_a_case_in_steps() -> None:
    case = HiddenProbe("gaussian", "g", 0, in_steps(5, 2), HIDDEN, HIDDEN).case(STATEFUL)
    assert [call["x"].shape[2] for call in case.calls] == [2, 2, 1]
    assert [int(call["write"].argmax()) for call in case.calls] == [0, 2, 4]
    np.testing.assert_array_equal(case.calls[2]["x"][0, :, 0, 0], HIDDEN[4])


def test_rows_that_were_overwritten_and_channels_left_out_are_not_compared() -> None:
    calls = ((0, 1), (1, 2), (1, 2))
    probe = HiddenProbe("rewrite", "r", 0, calls, HIDDEN, HIDDEN[[0, 3, 4]], left_out=(1,))
    case = probe.case(STATEFUL)
    assert (case.length, case.kept) == (3, (0, 3, 4))
    np.testing.assert_array_equal(probe.sequence, case.expected["y"])
    joined = case.joined([{"y": call["x"][0, :, :, 0].T} for call in case.calls])["y"]
    np.testing.assert_array_equal(joined, case.expected["y"])
    np.testing.assert_array_equal(case.compared(joined)[:, 1], 0)
    np.testing.assert_array_equal(case.compared(joined)[:, ::2], joined[:, ::2])


def test_a_sequence_that_begins_later_does_not_see_what_is_below() -> None:
    case = HiddenProbe("ragged", "r", 0, ((5, 1), (6, 1)), HIDDEN[:2]).case(STATEFUL)
    assert [np.flatnonzero(call["mask"] == 0).tolist() for call in case.calls] == [[5], [5, 6]]
    assert (case.length, case.kept) == (2, None)


@pytest.mark.parametrize("calls", [((0, 2), (3, 1)), ((2, 2), (1, 1))])
def test_calls_that_leave_a_gap_are_refused(calls: Any) -> None:
    with pytest.raises(ValueError, match="outside the sequence so far"):
        kept_rows(calls)


def test_a_case_of_a_package() -> None:
    inputs = {"x": np.array([[0.5, -2.0]], np.float16), "ids": np.array([900], np.int32)}
    case = package_case("gaussian", "gaussian #0", (inputs,), (), length=2)
    assert (case.length, case.input_max, dict(case.expected)) == (2, 2.0, {})
    assert case.calls == (inputs,)


PROBES = Probes(kinds=("gaussian",), count=4)
CLASSES = 9


class Scores(nn.Module):
    """Probabilities of classes, or with one class a single number."""

    def __init__(self, classes: int, shift: int = 0, gain: float = 1.0) -> None:
        super().__init__()
        weights = torch.randn(classes, 8, generator=torch.Generator().manual_seed(0))
        self.weights = nn.Parameter(gain * torch.roll(weights, shift, 0))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weights.T
        return torch.softmax(y, dim=-1) if y.shape[-1] > 1 else y


def convert(module: Scores, path: Path, labels: list[Any] | None = None) -> Path:
    ct = import_coremltools()
    x, config = ct.TensorType("x", (1, 8), dtype=np.float16), None
    if labels:
        config = ct.ClassifierConfig(labels)
    return save(path, module.half(), [x], torch.zeros(1, 8).half(), classifier_config=config)


def worst(artifact: Path, reference: Path) -> dict[str, float]:
    backend = CpuBackend()
    cases = package_cases(backend, artifact, reference, PROBES)
    found = measure(backend.load(artifact), cases, compared=True, provenance={}).comparisons
    return {o: min(c.worst for c in found if c.output == o) for o in {c.output for c in found}}


@pytest.mark.parametrize("labels", [[f"c{i}" for i in range(CLASSES)], list(range(CLASSES))])
def test_a_classifier(tmp_path: Path, labels: list[Any]) -> None:
    right = convert(Scores(CLASSES), tmp_path / "right.mlpackage", labels)
    twin = convert(Scores(CLASSES), tmp_path / "twin.mlpackage", labels)
    wrong = convert(Scores(CLASSES, shift=1), tmp_path / "wrong.mlpackage", labels)
    good = worst(twin, right)
    assert good.keys() == {"classLabel", *(good.keys() - {"classLabel"})}
    assert len(good) == 2
    assert min(good.values()) == pytest.approx(1, abs=1e-6)
    assert max(worst(wrong, right).values()) < 0.97


@pytest.mark.slow
def test_a_single_number_is_more_than_its_sign(tmp_path: Path) -> None:
    """Twice a number has the same direction."""
    right = convert(Scores(1), tmp_path / "right.mlpackage")
    twin = convert(Scores(1), tmp_path / "twin.mlpackage")
    (cosine,) = worst(twin, right).values()
    assert cosine == 1
    for gain, expected in ((2.0, 0.5), (1.1, 0.995), (-1.0, -1.0)):
        other = convert(Scores(1, gain=gain), tmp_path / f"{gain}.mlpackage")
        (cosine,) = worst(other, right).values()
        assert cosine == pytest.approx(expected, abs=2e-3)


def test_labels_are_directions_and_probabilities_go_by_label() -> None:
    cat, dog = as_array("cat"), as_array("dog")
    assert np.array_equal(cat, as_array("cat"))
    assert abs(cat @ dog) / np.linalg.norm(cat) / np.linalg.norm(dog) < 0.9
    ids = as_array(np.array([[3, 4, 3]], np.int32))
    assert ids.shape == (1, 3, 16)
    assert np.array_equal(ids[0, 0], ids[0, 2])
    assert not np.array_equal(ids[0, 0], ids[0, 1])
    assert np.array_equal(as_array(3), as_array(np.int64(3)))
    assert port_rows(np.ones((1, 5), int), Port("y", (1, "T"))).shape == (5, 16)
    assert as_array({"b": 0.25, "a": 0.75}).tolist() == [0.75, 0.25]
    assert as_array(np.float32(3)).shape == ()


class Repainted(nn.Module):
    """Half the brightness and a bias, in the channels' order given."""

    def __init__(self, scale: float = 0.5, bias: float = 20.0, order: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.scale, self.bias, self.order = scale, bias, list(order)

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale + self.bias
        return y[:, self.order] if self.order else y


def repainted(path: Path, color: str, **options: Any) -> Path:
    """A package from picture to picture, 6 by 8."""
    ct = import_coremltools()
    layout = getattr(ct.colorlayout, color)
    shape = (1, 1 if "GRAY" in color else 3, 6, 8)
    x, y = ct.ImageType("x", shape, color_layout=layout), ct.ImageType("y", color_layout=layout)
    return save(path, Repainted(**options), [x], torch.zeros(shape), outputs=[y])


COLOURS = ("RGB", "BGR", "GRAYSCALE", "GRAYSCALE_FLOAT16")


@pytest.mark.parametrize("color", COLOURS)
@pytest.mark.slow
def test_an_image_output_is_held_against_its_pixels(tmp_path: Path, color: str) -> None:
    plain = repainted(tmp_path / "plain.mlpackage", color)
    right = repainted(tmp_path / "right.mlpackage", color, scale=0.502)
    assert status(right, plain) == "passed"
    faults = {"negative": {"scale": -0.5}, "dark": {"scale": 0.1}, "bright": {"bias": 120.0}}
    if color == "GRAYSCALE_FLOAT16":  # Any numbers, of which a cosine sees no scale.
        faults = {"negative": {"scale": -0.5}}
    for name, wrong in faults.items():
        assert status(repainted(tmp_path / f"{name}.mlpackage", color, **wrong), plain) == "failed"


@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_channels_in_another_order_are_red(tmp_path: Path, color: str) -> None:
    plain = repainted(tmp_path / "plain.mlpackage", color)
    turned = repainted(tmp_path / "turned.mlpackage", color, order=(2, 1, 0))
    assert status(turned, plain) == "failed"


def test_what_is_clipped_is_no_difference(tmp_path: Path) -> None:
    """Beyond 0 to 255 no caller sees anything."""
    plain = repainted(tmp_path / "plain.mlpackage", "RGB", scale=0.0, bias=300.0)
    other = repainted(tmp_path / "other.mlpackage", "RGB", scale=0.01, bias=400.0)
    assert status(other, plain) == "passed"


@pytest.mark.parametrize("color", COLOURS)
def test_nan_in_an_image_is_red(tmp_path: Path, color: str) -> None:
    plain = repainted(tmp_path / "plain.mlpackage", color)
    bad = repainted(tmp_path / "bad.mlpackage", color, bias=float("nan"))
    assert status(bad, plain) == "failed"
    assert status(bad, None) == "failed"


def test_a_row_of_pixels() -> None:
    """Rounded to whole steps, clipped, less 127.5; of whatever a backend gives."""
    feature = Feature("y", DType.UINT8, (1, 2), kind="image", color="RGB")
    tensor = np.float32([[[[0.4, 300.0]], [[0.6, -5.0]], [[7.0, 8.0]]]])
    row = pixel_row(feature, tensor)
    assert (row + 127.5).tolist() == [[0, 1, 7, 255, 0, 8]]
    pixels = np.uint8([[[0, 1, 7], [255, 0, 8]]])
    for given in (pixels, Image.fromarray(pixels), Image.fromarray(pixels).convert("RGBA")):
        np.testing.assert_array_equal(pixel_row(feature, given), row)
    grey = Feature("y", DType.FP16, (1, 2), kind="image", color="GRAYSCALE_FLOAT16")
    assert pixel_row(grey, np.float32([[[[0.25, -3.0]]]])).tolist() == [[0.25, -3]]
    with pytest.raises(ExecutionError, match=r"output 'y' has shape \[1, 2, 1, 2\], not \[1, 3, H"):
        pixel_row(feature, tensor[:, :2])


def status(artifact: Path, reference: Path | None) -> str:
    return packages.status(artifact, reference, PROBES)
