"""Sorting along an axis, the most probable class, and non-maximum suppression.

Equal values keep their order, NaN comes last. Of overlapping boxes, the ones with the best scores
stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register


def _order(x: Any, axis: int, ascending: bool) -> Any:
    if not ascending:
        # For integers -x may overflow; ~x, which is -x - 1, never does.
        x = ~x if x.dtype.kind in "biu" else -x
    return np.argsort(x, axis=axis, kind="stable")


@register("argsort")
def argsort(x: Any, axis: int = -1, ascending: bool = False) -> Any:
    """Indices of the values in descending or ascending order, as int32."""
    return _order(np.asarray(x), axis, ascending).astype(np.int32)


@register("topk", moves=True)
def topk(
    x: Any, k: int = 1, axis: int = -1, ascending: bool = False, sort: bool = True,
    return_indices: bool = True, output_indices_dtype: str | None = None,
) -> Any:  # fmt: skip
    """The k greatest values along an axis, or the least if ascending, and their indices.

    -1 takes all (iOS 17); the result is always sorted, which `sort` (iOS 16) does not ask for.
    Indices are left out if not to be returned (iOS 16), and `int32` or `uint16` (iOS 17).
    """
    dtype = output_indices_dtype or "int32"
    x = np.asarray(x)
    count = x.shape[axis] if k == -1 else int(k)
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"k {count} is not from 0 to {x.shape[axis]}, the size of axis {axis}")
    indices = np.take(_order(x, axis, ascending), np.arange(count), axis=axis)
    values = np.take_along_axis(x, indices, axis=axis)
    if indices.size and indices.max() > np.iinfo(dtype).max:
        raise ValueError(f"index {indices.max()} does not fit {dtype}")
    return (values, indices.astype(dtype)) if return_indices else values


@register("classify", moves=True)
def classify(probabilities: Any, classes: Any) -> Any:
    """The class of the highest probability (the first of several), and probabilities by class."""
    labels = [c if isinstance(c, str) else int(c) for c in classes]
    values = np.ravel(probabilities)
    if len(labels) != values.size or not labels:
        raise ValueError(f"{values.size} probabilities for {len(labels)} classes")
    by_class = dict(zip(labels, values.tolist(), strict=True))
    return labels[int(np.argmax(values))], by_class


def overlaps(box: Any, boxes: Any) -> Any:
    """Intersection over union of a box with others; boxes without area overlap nothing."""
    low = np.maximum(box[:2] - box[2:] / 2, boxes[:, :2] - boxes[:, 2:] / 2)
    high = np.minimum(box[:2] + box[2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2)
    intersection = np.maximum(high - low, 0).prod(axis=1)
    union = box[2:].prod() + boxes[:, 2:].prod(axis=1) - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=intersection > 0)


def select_boxes(
    boxes: Any, scores: Any, iou: float, least: float, count: int, by_class: bool
) -> list[int]:
    """Indices of the boxes to keep, best score first, for boxes (B, 4) and scores (B, K).

    Each box is (x, y, width, height) with its centre. The least score, and an overlap that is the
    threshold itself, still count; of equal scores the earlier one comes first.
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
    boxes: Any, scores: Any, iou_threshold: float, score_threshold: float, max_boxes: int,
    per_class_suppression: bool = False,
) -> Any:  # fmt: skip
    """Boxes in descending order of score, without those that overlap a better one too much.

    A box's score is the greatest over its classes, and its class is where that is. Where no score
    reaches the threshold, the one best box is kept, as Core ML does by coremltools' own tests
    (`_ref_non_maximum_suppression` in its test_tensor_operation.py); equal scores keep their order.

    Returns:
        Of boxes (n, B, 4) and scores (n, B, K): kept boxes (n, max_boxes, 4), their scores
        (n, max_boxes, K), their indices (n, max_boxes), padded with 0, 0 and -1; and how many they
        are, (n,).
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
def non_maximum_suppression_boxes_last(boxes: Any, scores: Any, **options: Any) -> Any:
    """As of iOS15, without a threshold for scores and counts, and with the boxes' axis last."""
    first = (np.swapaxes(boxes, 1, 2), np.swapaxes(scores, 1, 2))
    kept = non_maximum_suppression(*first, score_threshold=-np.inf, **options)
    out_boxes, out_scores, indices, _ = kept
    return np.swapaxes(out_boxes, 1, 2), np.swapaxes(out_scores, 1, 2), indices
