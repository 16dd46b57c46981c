"""Class labels and probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_ane.core.errors import ExecutionError
from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import f32


def test_texts() -> None:
    label, probabilities = eval_op("classify", probabilities=f32([[0.25, 0.5, 0.25]]),
                                   classes=("ant", "bee", "cat"))  # fmt: skip
    assert label == "bee"
    assert probabilities == {"ant": 0.25, "bee": 0.5, "cat": 0.25}


def test_integers() -> None:
    """As a program's list of int64 scalars is read."""
    classes = tuple(np.array(c) for c in (10, 20))
    label, probabilities = eval_op("classify", probabilities=f32([0.5, 0.25]), classes=classes)
    assert (label, probabilities) == (10, {10: 0.5, 20: 0.25})
    assert {type(k) for k in [label, *probabilities]} == {int}


def test_the_first_of_several() -> None:
    assert eval_op("classify", probabilities=f32([0, 1, 1]), classes=("a", "b", "c"))[0] == "b"


@pytest.mark.parametrize("classes", [(), ("a",), ("a", "b", "c")])
def test_other_numbers_of_classes(classes: tuple[str, ...]) -> None:
    with pytest.raises(ExecutionError, match=f"2 probabilities for {len(classes)} classes"):
        eval_op("classify", probabilities=f32([0.5, 0.5]), classes=classes)


@pytest.mark.parametrize("labels", [["ant", "bee"], [7, 9]])
def test_the_classes_of_a_converted_classifier(
    labels: list[str] | list[int], tmp_path: Path
) -> None:
    """They are bound to the operation itself."""
    from pytest_ane.build.coremltools_quiet import converter_notes, import_coremltools
    from pytest_ane.mil import read_model
    from pytest_ane.mil.records import Ref
    from pytest_ane.reference import Session
    from pytest_ane.reference.constants import constant

    ct = import_coremltools()
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(torch.nn.Softmax(-1), torch.zeros(1, 2))
        ct.convert(
            traced,
            inputs=[ct.TensorType("x", (1, 2))],
            convert_to="mlprogram",
            classifier_config=ct.ClassifierConfig(labels),
            skip_model_load=True,
        ).save(str(tmp_path / "m.mlpackage"))
    model = read_model(tmp_path / "m.mlpackage")
    operation = model.program.main.block.operations[-1]
    (classes,) = operation.inputs["classes"]
    assert not isinstance(classes, Ref)
    label, probabilities = eval_op(operation.op, probabilities=f32([[0.25, 0.75]]),
                                   classes=constant(model, classes))  # fmt: skip
    assert label == labels[1]
    assert probabilities == {labels[0]: 0.25, labels[1]: 0.75}
    found = Session(model).predict({"x": f32([[0, np.log(3)]])})
    label = found.pop("classLabel")
    assert label == labels[1]
    (by_class,) = found.values()
    assert by_class == pytest.approx({labels[0]: 0.25, labels[1]: 0.75}, rel=1e-3)
