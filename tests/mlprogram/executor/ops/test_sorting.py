"""Sorting, and non-maximum suppression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, f32, same
from tests.mlprogram.executor.programs import written

X = np.array([[2, 3, 1], [5, 4, 6]])
KINDS = [np.float32, np.int8, np.int16, np.int32, np.uint8, np.uint16]


def pair(expected: Any, indices: Any, *, opset: str = "iOS18", **parameters: Any) -> None:
    values, found = eval_op("topk", opset=opset, **parameters)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(found, indices)
    assert values.dtype == parameters["x"].dtype


def test_orders() -> None:
    same("argsort", [[1, 0, 2], [2, 0, 1]], x=f32(X))
    same("argsort", [[2, 0, 1], [1, 0, 2]], x=f32(X), ascending=True)
    same("argsort", [[1, 1, 1], [0, 0, 0]], x=f32(X), axis=0)
    x = f32([np.nan, -np.inf, 1, np.inf])
    same("argsort", [3, 2, 1, 0], x=x)
    same("argsort", [1, 2, 3, 0], x=x, ascending=True)
    x = np.tile(f32([1, 2]), 50)
    odd, even = np.arange(1, 100, 2), np.arange(0, 100, 2)
    same("argsort", np.concatenate([odd, even]), x=x)
    same("argsort", np.concatenate([even, odd]), x=x, ascending=True)
    pair([2, 2, 2], [1, 3, 5], x=x, k=3)


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17"])
@pytest.mark.parametrize("dtype", KINDS)
def test_topk(opset: str, dtype: Any) -> None:
    x = X.astype(dtype)
    pair([[3, 2], [6, 5]], [[1, 0], [2, 0]], x=x, k=2, axis=1, opset=opset)
    pair([[1], [4]], [[2], [1]], x=x, ascending=True, opset=opset)
    pair([[5, 4, 6]], [[1, 1, 1]], x=x, k=np.int8(1), axis=-2, opset=opset)


@pytest.mark.parametrize("dtype", KINDS)
def test_the_ends_of_types(dtype: Any) -> None:
    ends = np.finfo(dtype) if dtype is np.float32 else np.iinfo(dtype)
    x = np.array([ends.min, 0, ends.max, ends.min], dtype)
    same("argsort", np.argsort(x, kind="stable"), x=x, ascending=True)
    assert eval_op("topk", x=x)[1].tolist() == [2]
    assert eval_op("argsort", x=x)[-1] == 3


@settings(max_examples=40)
@given(arrays(), st.booleans(), st.data())
def test_topk_as_torch_has_it(x: Any, ascending: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k = data.draw(st.integers(1, x.shape[axis]))
    expected, _ = torch.from_numpy(x).topk(k, axis, largest=not ascending)
    values, indices = eval_op("topk", x=x, k=k, axis=axis, ascending=ascending)
    np.testing.assert_array_equal(values, expected.numpy())
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis))


def test_what_topk_gives() -> None:
    for opset in ("iOS16", "iOS17"):
        same("topk", [[3], [6]], x=f32(X), return_indices=False, sort=False, opset=opset)
    pair([[3, 2, 1], [6, 5, 4]], [[1, 0, 2], [2, 0, 1]], x=X, k=-1)
    none = np.zeros((0, 3), np.float32)
    same("argsort", none, x=none)
    pair(none[:, :2], none[:, :2], x=none, k=2)


@pytest.mark.parametrize("dtype", ["int32", "uint16"])
def test_types_of_indices(dtype: str) -> None:
    indices = eval_op("topk", x=np.arange(2**16), output_indices_dtype=dtype)[1]
    assert (indices.dtype, indices.tolist()) == (dtype, [2**16 - 1])


def test_classify() -> None:
    label, probabilities = eval_op("classify", probabilities=f32([[0.25, 0.5, 0.25]]),
                                   classes=("ant", "bee", "cat"))  # fmt: skip
    assert label == "bee"
    assert probabilities == {"ant": 0.25, "bee": 0.5, "cat": 0.25}
    # As a program's list of int64 scalars is read.
    classes = tuple(np.array(c) for c in (10, 20))
    label, probabilities = eval_op("classify", probabilities=f32([0.5, 0.25]), classes=classes)
    assert (label, probabilities) == (10, {10: 0.5, 20: 0.25})
    assert {type(k) for k in [label, *probabilities]} == {int}
    assert eval_op("classify", probabilities=f32([0, 1, 1]), classes=("a", "b", "c"))[0] == "b"


@pytest.mark.parametrize(("kind", "labels"), [("string", ["ant", "bee"]), ("int64", [7, 9])])
def test_a_classifier_as_a_program_has_it(kind: str, labels: list[Any], tmp_path: Path) -> None:
    body = f"""{kind} label, dict<{kind}, fp32> by_class = classify(
        probabilities = x, classes = list<{kind}, 2>({json.dumps(labels)}));"""
    classifier = written(tmp_path / "m.mlmodelc", body, "label, by_class", "tensor<fp32, [1, 2]> x")
    label, by_class = classifier.predict({"x": f32([[0.25, 0.75]])}).values()
    assert label == labels[1]
    assert by_class == {labels[0]: 0.25, labels[1]: 0.75}


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


def test_boxes_that_are_kept() -> None:
    boxes, scores, indices, counts = nms()
    np.testing.assert_array_equal(boxes, [[BOXES[0, 0], BOXES[0, 2], [0] * 4, [0] * 4]])
    np.testing.assert_array_equal(scores, [[SCORES[0, 0], SCORES[0, 2], [0, 0], [0, 0]]])
    assert indices.tolist() == [[0, 2, -1, -1]]
    assert counts.tolist() == [2]
    assert nms(per_class_suppression=True)[2].tolist() == [[0, 1, 2, -1]]
    indices, counts = nms(score_threshold=1.0)[2:]
    assert (indices.tolist(), counts.tolist()) == ([[0, -1, -1, -1]], [1])
    scores = np.full_like(SCORES, 0.5)
    assert nms(scores=scores, iou_threshold=0.9)[2].tolist() == [[0, 1, 2, -1]]
    assert nms(scores=scores, max_boxes=1)[2].tolist() == [[0]]
