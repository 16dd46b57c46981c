"""Detectors whole: a right one is green, a wrong one red, whatever the order of its objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest import Input, Policy, Probes
from pytest_ane.mlprogram.model import read_any
from pytest_ane.probes.cases import Detection, aligned
from pytest_ane.probes.package import package_cases
from tests.detectors import detector

pytestmark = [pytest.mark.slow, pytest.mark.drawn]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return detector(tmp_path_factory.mktemp("detector") / "reference.mlpackage")


def verdict(
    artifact: Path, reference: Path | None, inputs: Mapping[str, Input] | None = None
) -> Verdict:
    """The gate's, under the default policy."""
    backend = CpuBackend()
    probes = Probes(kinds=("gaussian",), count=4)
    shard = {"reference": reference or "none", "golden": None, "function": None, "max_tokens": 1}
    context: Any = SimpleNamespace(
        program=read_any(artifact),
        ports=lambda: None,
        cases=lambda: package_cases(backend, artifact, reference, probes, inputs),
        backend=backend,
        artifact=SimpleNamespace(path=artifact, digest="d"),
        shard=SimpleNamespace(**shard, arithmetic=("typed",)),
        budget=lambda: "none",
    )
    subject: Any = SimpleNamespace(qualified="mine:yolo", arithmetic=("typed",))
    return FIDELITY.judge(FIDELITY.measure(context), Policy().fidelity, subject)


def reasons(verdict: Verdict) -> str:
    return "; ".join(f.reason for f in verdict.findings if f.severity != "note")


def test_a_right_detector_is_green(reference: Path, tmp_path: Path) -> None:
    """In gradients and noise there are no objects; near ties decide which boxes are left."""
    right = detector(tmp_path / "right.mlpackage", spoilt=1.01)
    judged = verdict(right, reference)
    assert judged.status == "passed", reasons(judged)
    (table,) = (t for t in judged.tables if t.title == "what the probes exercise")
    assert dict(table.rows) == {
        "part part1": "run",
        "part part2": "run",
        "outputs confidence, coordinates": "compared as raw_confidence, raw_coordinates",
        "input image": "image: gradients and noise from 0 to 255",
        "input iouThreshold": "uniform: from 0 to 1, in every second probe; it is optional",
        "input confidenceThreshold": "uniform: from 0 to 1, in every second probe; it is optional",
        "lengths": "1 compared",
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"spoilt": -1.0}, "below min-cosine"),
        ({"spoilt": 0.1}, "below min-cosine"),
        ({"iou": 0.5}, "not that of the reference: part part2: iouThreshold 0.5 in place of 0.3"),
        ({"confidence": 0.601}, "confidenceThreshold 0.601 in place of 0.6"),
        ({"per_class": False}, "perClass False in place of True"),
        ({"labels": ("cat", "bird", "dog")}, "cat, bird, dog in place of cat, dog, bird"),
    ],
)
def test_wrong_detectors_are_red(
    reference: Path, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    judged = verdict(detector(tmp_path / "wrong.mlpackage", **changed), reference)
    assert judged.status == "failed"
    assert reason in reasons(judged)


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, Input]:
    """Squares, each in a colour of its own."""
    rng = np.random.default_rng(1)
    for i in range(3):
        pixels = np.zeros((48, 64, 3), np.uint8)
        pixels[8 * i : 8 * i + 16, 10 * i : 10 * i + 20] = rng.integers(0, 256, 3)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    files = [str(tmp_path / f"{i}.png") for i in range(3)]
    return {"image": Input(kind="image", files=files)}


def test_in_pictures_the_objects_are_compared(
    reference: Path, tmp_path: Path, pictures: dict[str, Input]
) -> None:
    judged = verdict(detector(tmp_path / "right.mlpackage", spoilt=1.001), reference, pictures)
    assert judged.status == "passed", reasons(judged)
    (table,) = (t for t in judged.tables if t.title == "what the probes exercise")
    assert dict(table.rows)["input image"] == "image: as the manifest says"
    wrong = verdict(detector(tmp_path / "wrong.mlpackage", spoilt=0.1), reference, pictures)
    assert "output confidence" in reasons(wrong)


def test_pictures_in_which_nothing_is_detected_are_no_proof(
    tmp_path: Path, pictures: dict[str, Input]
) -> None:
    blind = [
        detector(tmp_path / f"{name}.mlpackage", confidence=1.01, spoilt=spoilt)
        for name, spoilt in (("a", 1.01), ("b", 1.0))
    ]
    high = {"confidenceThreshold": Input(kind="uniform", range=(1.01, 1.02))}
    judged = verdict(blind[0], blind[1], pictures | high)
    assert judged.status == "unproven"
    assert "outputs confidence, coordinates is not exercised: nothing was detected" in (
        reasons(judged)
    )


OBJECTS = Detection(("c", "b"), ("raw_c", "raw_b"))
CONFIDENCE = np.float32([[0.9, 0.1], [0.1, 0.8], [0.7, 0.0]])
BOXES = np.float32([[5, 5, 10, 10], [5, 5, 10, 10], [50, 50, 10, 10]])


def matched(actual: Any, boxes: Any) -> tuple[Any, Any]:
    left = {"c": np.float32(actual).reshape(-1, 2), "b": np.float32(boxes).reshape(-1, 4)}
    mine, theirs = aligned(left, {"c": CONFIDENCE, "b": BOXES}, [OBJECTS])
    return [side["c"].reshape(-1, 2).tolist() for side in (mine, theirs)], mine["b"].reshape(-1, 4)


def test_objects_are_matched_by_class_and_overlap() -> None:
    order = [2, 1, 0]
    (mine, theirs), boxes = matched(CONFIDENCE[order], BOXES[order] + np.float32([1, 0, 0, 0]))
    expected = [0, 1, 2]
    assert mine == theirs == CONFIDENCE[expected].tolist()
    np.testing.assert_allclose(boxes[0], np.float32([6, 5, 10, 10]) * np.float32(0.9))


def test_objects_without_partners_are_held_against_zeros() -> None:
    (mine, theirs), _ = matched(CONFIDENCE[:1], BOXES[2:] + 100)
    assert mine[-1] == CONFIDENCE[0].tolist()
    assert theirs[-1] == [0, 0]
    assert mine[:3] == [[0, 0]] * 3
    assert theirs[:3] == CONFIDENCE.tolist()
    nothing = {"c": np.zeros((0, 2), np.float32), "b": np.zeros((0, 4), np.float32)}
    mine, theirs = aligned(nothing, nothing, [OBJECTS])
    assert mine["c"].tolist() == theirs["c"].tolist() == [[0, 0]]
