"""Non-maximum suppression: of overlapping boxes, the ones with the best scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.registry import register


def overlaps(box: Any, boxes: Any) -> Any:
    """Intersection over union of a box with others, each (x, y, width, height) with its centre.

    Boxes without area overlap nothing.
    """
    low = np.maximum(box[:2] - box[2:] / 2, boxes[:, :2] - boxes[:, 2:] / 2)
    high = np.minimum(box[:2] + box[2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2)
    intersection = np.maximum(high - low, 0).prod(axis=1)
    union = box[2:].prod() + boxes[:, 2:].prod(axis=1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=intersection > 0)


def select_boxes(
    boxes: Any, scores: Any, iou: float, least: float, count: int, by_class: bool
) -> list[int]:
    """Indices of the boxes to keep, best score first, for boxes (B, 4) and scores (B, K).

    The least score, and an overlap that is the threshold itself, still count. At most `count` are
    kept; of equal scores the earlier one comes first.
    """
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    waiting = np.argsort(-best, kind="stable")
    waiting = waiting[best[waiting] >= float(least)]
    chosen: list[int] = []
    while waiting.size and len(chosen) < count:
        first, waiting = waiting[0], waiting[1:]
        chosen.append(int(first))
        beaten = overlaps(boxes[first], boxes[waiting]) > float(iou)
        if by_class:
            beaten &= classes[waiting] == classes[first]
        waiting = waiting[~beaten]
    return chosen


@register("non_maximum_suppression")
def non_maximum_suppression(
    boxes: Any,
    scores: Any,
    iou_threshold: float,
    score_threshold: float,
    max_boxes: int,
    per_class_suppression: bool = False,
) -> Any:
    """Boxes in descending order of score, without those that overlap a better one too much.

    A box's score is the greatest over its classes, and its class is where that is. Where no score
    reaches the threshold, the one best box is kept, as Core ML does by coremltools' own tests
    (`_ref_non_maximum_suppression` in its test_tensor_operation.py); equal scores keep their order.

    Args:
        boxes: (n, B, 4), each (x, y, width, height) with its centre.
        scores: (n, B, K), of K classes.
        iou_threshold: boxes with a greater intersection over union are suppressed.
        score_threshold: boxes with a lower score are left out.
        max_boxes: the most boxes to keep.
        per_class_suppression: only boxes of the same class suppress each other.

    Returns:
        Kept boxes (n, max_boxes, 4), their scores (n, max_boxes, K), their indices (n, max_boxes),
        padded with 0, 0 and -1; and how many they are, (n,).

    Raises:
        ValueError: the shapes do not fit, or max_boxes is negative.
    """
    boxes, scores, width = np.asarray(boxes), np.asarray(scores), int(max_boxes)
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (*scores.shape[:2], 4) or width < 0:
        raise ValueError(f"boxes {boxes.shape}, scores {scores.shape} and max_boxes {width}")
    n, available, classes = scores.shape
    out_boxes = np.zeros((n, width, 4), boxes.dtype)
    out_scores = np.zeros((n, width, classes), scores.dtype)
    indices, counts = np.full((n, width), -1, np.int32), np.zeros(n, np.int32)
    for i in range(n if available and classes else 0):
        kept = select_boxes(
            boxes[i], scores[i], iou_threshold, score_threshold, width, per_class_suppression
        )
        kept = kept or [int(np.argmax(scores[i].max(axis=1)))][:width]
        counts[i] = len(kept)
        indices[i, : len(kept)] = kept
        out_boxes[i, : len(kept)], out_scores[i, : len(kept)] = boxes[i, kept], scores[i, kept]
    return out_boxes, out_scores, indices, counts


@register("non_maximum_suppression", opset="iOS17")
def non_maximum_suppression_boxes_last(
    boxes: Any,
    scores: Any,
    iou_threshold: float,
    max_boxes: int,
    per_class_suppression: bool = False,
) -> Any:
    """As the version of iOS15, without a threshold for scores and with the boxes' axis last.

    Returns:
        Kept boxes (n, 4, max_boxes), their scores (n, K, max_boxes), their indices (n, max_boxes).
    """
    out_boxes, out_scores, indices, _ = non_maximum_suppression(
        np.swapaxes(boxes, 1, 2), np.swapaxes(scores, 1, 2), iou_threshold, -np.inf, max_boxes,
        per_class_suppression,
    )  # fmt: skip
    return np.swapaxes(out_boxes, 1, 2), np.swapaxes(out_scores, 1, 2), indices
