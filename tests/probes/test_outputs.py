"""Outputs of packages: a classifier's label and probabilities, and single numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ane.backends import CpuBackend
from pytest_ane.build.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.families import Port
from pytest_ane.gates.fidelity import measure
from pytest_ane.manifest import Probes
from pytest_ane.probes.cases import as_array, port_rows
from pytest_ane.probes.package import package_cases

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
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(module.eval().half(), torch.zeros(1, 8).half())
        config = ct.ClassifierConfig(labels) if labels else None
        model = ct.convert(
            traced,
            inputs=[ct.TensorType("x", (1, 8), dtype=np.float16)],
            classifier_config=config,
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )
        model.user_defined_metadata["made"] = path.stem
        model.save(str(path))
    return path


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
