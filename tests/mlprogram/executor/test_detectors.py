"""Core ML's own non-maximum suppression, as NonMaximumSuppression.proto describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError, ProgramError
from pytest_ane.mlprogram.executor import open_session
from pytest_ane.mlprogram.executor._pipeline import SuppressionSession
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.records import DType, Feature, NonMaximumSuppression, Pipeline
from tests.detectors import detector

# Boxes 0 and 1 overlap by 1/3, 0 and 2 by 3/5; box 3 is far away.
BOXES = [[5, 5, 10, 10], [10, 5, 10, 10], [7.5, 5, 10, 10], [50, 50, 10, 10]]
SCORES = [[0.9, 0.0], [0.8, 0.1], [0.1, 0.7], [0.3, 0.2]]


def model(**changed: Any) -> NonMaximumSuppression:
    """One of all boxes that do not overlap by more than a half."""
    rows = changed.pop("rows", (0, None))
    features = [Feature("scores", DType.FP32, ()), Feature("boxes", DType.FP32, ())]
    outputs = [
        Feature(name, DType.FP32, (), ranges=(rows, (width, width)))
        for name, width in (("confidence", 2), ("coordinates", 4))
    ]
    known: dict[str, Any] = {
        "iou_threshold": 0.5, "confidence_threshold": 0.0, "per_class": False, "labels": (),
        "confidence": ("scores", "confidence"), "coordinates": ("boxes", "coordinates"),
        "iou_input": "iou", "confidence_threshold_input": "least",
    }  # fmt: skip
    return NonMaximumSuppression("P", 5, tuple(features), tuple(outputs), **known | changed)


def suppress(
    scores: Any = SCORES, boxes: Any = BOXES, given: Any = None, **changed: Any
) -> list[list[float]]:
    """The confidences that are left; the boxes are those of the same rows."""
    inputs = {"scores": np.float32(scores), "boxes": np.float32(boxes), **(given or {})}
    outputs = SuppressionSession(model(**changed)).predict(inputs)
    kept = [row for row in outputs["confidence"].tolist() if any(row)]
    rows = [np.float32(scores).tolist().index(row) for row in kept]
    np.testing.assert_array_equal(outputs["coordinates"][: len(rows)], np.float32(boxes)[rows])
    assert not outputs["coordinates"][len(rows) :].any()
    return rows + [-1] * (len(outputs["confidence"]) - len(rows))


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({}, [0, 1, 3]),
        ({"iou_threshold": 0.3}, [0, 3]),
        ({"iou_threshold": 1.0}, [0, 1, 2, 3]),
        ({"per_class": True}, [0, 1, 2, 3]),
        ({"per_class": True, "iou_threshold": 0.3}, [0, 2, 3]),
        ({"confidence_threshold": 0.5}, [0, 1]),
        ({"confidence_threshold": float(np.float32(0.8))}, [0, 1]),
        ({"confidence_threshold": 0.95}, []),
        ({"rows": (2, 2)}, [0, 1]),
        ({"rows": (4, 4), "iou_threshold": 0.3}, [0, 3, -1, -1]),
        ({"rows": (3, None), "confidence_threshold": 0.95}, [-1, -1, -1]),
        ({"given": {"iou": 0.3}}, [0, 3]),
        ({"given": {"least": np.array([0.5])}}, [0, 1]),
        ({"given": {"iou": 0.3, "least": 0.5}, "per_class": True}, [0, 2]),
        ({"scores": np.zeros((0, 2)), "boxes": np.zeros((0, 4))}, []),
    ],
)
def test_boxes_that_are_kept(changed: dict[str, Any], rows: list[int]) -> None:
    assert suppress(**changed) == rows


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"boxes": [[1, 2, 3]] * 4}, r"N, 4\], and was given \[4, 2\] and \[4, 3\]"),
        ({"scores": [0.5, 0.5]}, r"was given \[2\] and \[4, 4\]"),
        ({"scores": [[np.nan, 0.5]] * 4}, "NaN or infinite values of 'scores', by the part before"),
        ({"given": {"iou": -0.1}}, "one number from 0 on as 'iou', and was given -0.1"),
        ({"given": {"least": [0.1, 0.2]}}, "one number from 0 on as 'least'"),
        ({"labels": ("a", "b", "c")}, r"\[N, 3\] and coordinates \[N, 4\]"),
    ],
)
def test_inputs_that_are_refused(inputs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExecutionError, match=sentence):
        suppress(**inputs)


def overlap(a: Any, b: Any) -> float:
    sides = [
        max(0.0, min(a[i] + a[i + 2] / 2, b[i] + b[i + 2] / 2)
            - max(a[i] - a[i + 2] / 2, b[i] - b[i + 2] / 2))
        for i in (0, 1)
    ]  # fmt: skip
    area = sides[0] * sides[1]
    return area / (a[2] * a[3] + b[2] * b[3] - area) if area else 0.0


BOX = st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(1, 8)] * 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(BOX, max_size=12), st.integers(1, 3), st.booleans(), st.integers(0, 10**6))
def test_what_is_kept_and_why_the_rest_is_not(
    boxes: list[Any], classes: int, per_class: bool, seed: int
) -> None:
    """No kept pair overlaps too much; what is left out is weak or beaten by a better kept one."""
    scores = np.random.default_rng(seed).permutation(len(boxes) * classes).reshape(-1, classes)
    scores = (scores + 1) / (scores.size + 2)
    kept = suppress(
        np.float32(scores), np.float32(boxes).reshape(-1, 4), iou_threshold=0.4,
        confidence_threshold=0.3, per_class=per_class,
    )  # fmt: skip
    best, kind = scores.max(axis=1, initial=0), scores.argmax(axis=1) if boxes else []

    def rivals(i: int, j: int) -> bool:
        return overlap(boxes[i], boxes[j]) > 0.4 and (not per_class or kind[i] == kind[j])

    assert [best[i] for i in kept] == sorted((best[i] for i in kept), reverse=True)
    assert all(best[i] >= 0.3 for i in kept)
    assert not any(rivals(i, j) for i in kept for j in kept if i != j)
    for i in {*range(len(boxes))} - {*kept}:
        assert best[i] < 0.3 or any(rivals(i, j) and best[j] > best[i] for j in kept)


def test_a_detector_runs_whole(tmp_path: Path) -> None:
    """The thresholds, which exporters do not mark as optional, may be left out."""
    pipeline = read_any(detector(tmp_path / "d.mlpackage"))
    assert isinstance(pipeline, Pipeline)
    assert [(f.name, f.optional) for f in pipeline.inputs] == [
        ("image", False), ("iouThreshold", True), ("confidenceThreshold", True),
    ]  # fmt: skip
    (part,) = pipeline.suppressions
    assert (part.confidence[1], part.coordinates[1]) == pipeline.output_names
    session = open_session(pipeline)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    raw = session.predict({"image": pixels}, outputs=["raw_confidence", "raw_coordinates"])
    left = session.predict({"image": pixels})
    assert left["confidence"].shape[1:] == (3,)
    assert 5 < len(left["confidence"]) == len(left["coordinates"]) < 64
    every = session.predict({"image": pixels, "iouThreshold": 1.0, "confidenceThreshold": 0.0})
    order = np.argsort(-raw["raw_confidence"].max(axis=1), kind="stable")
    np.testing.assert_array_equal(every["coordinates"], raw["raw_coordinates"][order])
    assert len(session.predict({"image": pixels, "confidenceThreshold": 1.1})["confidence"]) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda nms: setattr(nms, "confidenceInputFeatureName", "q"), "names the input 'q'"),
        (lambda nms: setattr(nms, "coordinatesOutputFeatureName", "q"), "names the output 'q'"),
        (lambda nms: setattr(nms, "iouThreshold", float("nan")), "iouThreshold = nan; it must be"),
    ],
)
def test_a_damaged_suppression(tmp_path: Path, change: Any, sentence: str) -> None:
    from pytest_ane.mlprogram.proto import definitions
    from tests.mlprogram.packages import model_file

    file = model_file(detector(tmp_path / "d.mlpackage"))
    spec = definitions().Model.FromString(file.read_bytes())
    change(spec.pipeline.models[1].nonMaximumSuppression)
    file.write_bytes(spec.SerializeToString())
    with pytest.raises(ProgramError, match=sentence):
        read_any(tmp_path / "d.mlpackage")
