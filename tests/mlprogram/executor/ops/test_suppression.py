"""Non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import f32

# Boxes 0 and 1 overlap by 2/3 and each has its own class; box 2 is apart.
BOXES = f32([[[5, 5, 10, 10], [7, 5, 10, 10], [50, 50, 10, 10]]])
SCORES = f32([[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]])


def nms(**changed: Any) -> Any:
    parameters = {"boxes": BOXES, "scores": SCORES, "iou_threshold": 0.5, "score_threshold": 0.4,
                  "max_boxes": 4}  # fmt: skip
    return eval_op("non_maximum_suppression", opset="iOS15", **(parameters | changed))


def test_boxes_without_area() -> None:
    """The smoke test of coremltools."""
    boxes = f32([[[i] * 4 for i in range(4)]])
    scores = f32([[[-3.5], [9.4], [2.3], [0.7]]])
    found = nms(boxes=boxes, scores=scores, iou_threshold=0.2, max_boxes=2,
                per_class_suppression=True)  # fmt: skip
    expected = ([[[1] * 4, [2] * 4]], f32([[[9.4], [2.3]]]), [[1, 2]], [2])
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
    assert [r.dtype for r in found] == [np.float32, np.float32, np.int32, np.int32]


def test_padding() -> None:
    boxes, scores, indices, counts = nms()
    np.testing.assert_array_equal(boxes, [[BOXES[0, 0], BOXES[0, 2], [0] * 4, [0] * 4]])
    np.testing.assert_array_equal(scores, [[SCORES[0, 0], SCORES[0, 2], [0, 0], [0, 0]]])
    assert indices.tolist() == [[0, 2, -1, -1]]
    assert counts.tolist() == [2]


def test_classes_apart() -> None:
    assert nms(per_class_suppression=True)[2].tolist() == [[0, 1, 2, -1]]


def test_thresholds_themselves_pass() -> None:
    third = f32([[[5, 5, 10, 10], [10, 5, 10, 10], [50, 50, 10, 10]]])
    assert nms(boxes=third, iou_threshold=float(f32(1) / f32(3)))[2].tolist() == [[0, 1, 2, -1]]
    assert nms(iou_threshold=0.66)[2].tolist() == [[0, 2, -1, -1]]
    assert nms(iou_threshold=0.67, score_threshold=float(f32(0.8)))[2].tolist() == [[0, 1, -1, -1]]


def test_one_box_stays_where_no_score_suffices() -> None:
    indices, counts = nms(score_threshold=1.0)[2:]
    assert (indices.tolist(), counts.tolist()) == ([[0, -1, -1, -1]], [1])


def test_equal_scores_keep_their_order() -> None:
    scores = np.full_like(SCORES, 0.5)
    assert nms(scores=scores, iou_threshold=0.9)[2].tolist() == [[0, 1, 2, -1]]
    assert nms(scores=scores, max_boxes=1)[2].tolist() == [[0]]


def test_batches_and_no_boxes() -> None:
    two = nms(boxes=np.concatenate([BOXES, BOXES[:, ::-1]]),
              scores=np.concatenate([SCORES, SCORES[:, ::-1]]))  # fmt: skip
    assert two[2].tolist() == [[0, 2, -1, -1], [2, 0, -1, -1]]
    none = nms(boxes=BOXES[:, :0], scores=SCORES[:, :0])
    assert (none[2].tolist(), none[3].tolist()) == ([[-1] * 4], [0])
    assert nms(max_boxes=0)[3].tolist() == [0]


@pytest.mark.parametrize("by_class", [True, False])
def test_ios17_has_boxes_last_and_no_threshold(by_class: bool) -> None:
    common = {"iou_threshold": 0.5, "max_boxes": 4, "per_class_suppression": by_class}
    found = eval_op("non_maximum_suppression", boxes=BOXES.transpose(0, 2, 1),
                    scores=SCORES.transpose(0, 2, 1) - 1, **common)  # fmt: skip
    boxes, scores, indices, _ = nms(scores=SCORES - 1, score_threshold=-9.0, **common)
    assert [f.shape for f in found] == [(1, 4, 4), (1, 2, 4), (1, 4)]
    np.testing.assert_array_equal(found[0], boxes.transpose(0, 2, 1))
    np.testing.assert_array_equal(found[1], scores.transpose(0, 2, 1))
    np.testing.assert_array_equal(found[2], indices)


def overlap(a: Any, b: Any) -> float:
    area = 1.0
    for i in (0, 1):
        high = min(a[i] + a[i + 2] / 2, b[i] + b[i + 2] / 2)
        low = max(a[i] - a[i + 2] / 2, b[i] - b[i + 2] / 2)
        area *= max(0.0, high - low)
    return area / (a[2] * a[3] + b[2] * b[3] - area) if area else 0.0


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_box_by_box(count: int, classes: int, by_class: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes, scores = rng.uniform(1, 30, (count, 4)), rng.uniform(-1, 1, (count, classes))
    best, kind = scores.max(axis=1), scores.argmax(axis=1)
    kept: list[int] = []
    for i in sorted(range(count), key=lambda i: -best[i]):
        beaten = any(overlap(boxes[i], boxes[j]) > 0.3 and (not by_class or kind[i] == kind[j])
                     for j in kept)  # fmt: skip
        if best[i] >= 0 and not beaten:
            kept.append(i)
    kept = (kept or [int(best.argmax())])[:5]
    indices, counts = nms(boxes=boxes[None], scores=scores[None], iou_threshold=0.3, max_boxes=5,
                          score_threshold=0.0, per_class_suppression=by_class)[2:]  # fmt: skip
    assert indices[0, : counts[0]].tolist() == kept


@pytest.mark.parametrize(
    "wrong", [{"boxes": BOXES[..., :3]}, {"scores": SCORES[:, :2]}, {"scores": SCORES[0]},
              {"max_boxes": -1}]
)  # fmt: skip
def test_operands_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="max_boxes"):
        nms(**wrong)
