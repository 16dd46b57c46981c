"""What a model declares; the parts of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram._features import read_features
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import DType, Feature, Pipeline
from tests.mlprogram.packages import Program, weight_file
from tests.mlprogram.pipelines import chain, given, made, stage, three

FILE = Path("model.mlmodel")


def description(name: str = "x") -> Any:
    message = definitions().Model().description.input.add()
    message.name = name
    return message


def array(shape: tuple[int, ...] = (1, 4), kind: int = 65552) -> Any:
    message = description()
    message.type.multiArrayType.dataType = kind
    message.type.multiArrayType.shape.extend(shape)
    return message


def one(message: Any) -> Feature:
    (feature,) = read_features([message], FILE)
    return feature


def test_shapes() -> None:
    kinds = {65552: "fp16", 65568: "fp32", 65600: "fp64", 131104: "int32", 131080: "int8"}
    for kind, dtype in kinds.items():
        assert one(array(kind=kind)) == Feature("x", DType(dtype), (1, 4))
    assert one(sized((1, 1), (2, -1))).ranges == ((1, 1), (2, None))
    message = array()
    for shape in ((1, 4), (1, 8)):
        message.type.multiArrayType.enumeratedShapes.shapes.add().shape.extend(shape)
    assert one(message).enumerated == ((1, 4), (1, 8))
    message = description("cache")
    message.type.stateType.arrayType.dataType = 65552
    message.type.stateType.arrayType.shape.extend((2, 3))
    assert one(message) == Feature("cache", DType.FP16, (2, 3), kind="state")


def test_an_optional_input() -> None:
    message = array()
    message.type.isOptional = True
    assert one(message).optional
    assert one(message).default is None
    message.type.multiArrayType.floatDefaultValue = 0.0
    assert one(message).default == 0
    message.type.multiArrayType.intDefaultValue = 3
    assert one(message).default == 3


def test_images() -> None:
    message = description()
    message.type.imageType.width, message.type.imageType.height = 4, 2
    message.type.imageType.colorSpace = 30
    assert one(message) == Feature("x", DType.UINT8, (2, 4), kind="image", color="BGR")
    message.type.imageType.colorSpace = 40
    assert one(message).dtype is DType.FP16
    # Core ML writes width before height; shapes are the other way round.
    listed = description()
    for width, height in ((4, 2), (8, 6)):
        size = listed.type.imageType.enumeratedSizes.sizes.add()
        size.width, size.height = width, height
    assert one(listed).enumerated == ((2, 4), (6, 8))
    message = description()
    ranged = message.type.imageType.imageSizeRange
    ranged.widthRange.lowerBound, ranged.widthRange.upperBound = 4, -1
    ranged.heightRange.lowerBound, ranged.heightRange.upperBound = 2, 6
    assert one(message).ranges == ((2, 6), (4, None))


def sized(*ranges: tuple[int, int]) -> Any:
    message = array()
    for low, high in ranges:
        size = message.type.multiArrayType.shapeRange.sizeRanges.add()
        size.lowerBound, size.upperBound = low, high
    return message


def image(**fields: int) -> Any:
    message = description()
    for name, value in fields.items():
        setattr(message.type.imageType, name, value)
    return message


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: array(kind=5), "the unknown type 5."),
        (lambda: array(shape=(1, -4)), "the impossible shape [1, -4]."),
        (lambda: image(colorSpace=7), "the unknown colors 7."),
        (lambda: image(height=-2, width=4), "the impossible shape [-2, 4]."),
        (lambda: sized((1, 8)), "1 ranges for 2 dimensions."),
        (lambda: sized((1, 1), (9, 8)), "the impossible range 9..8."),
    ],
)
def test_what_no_model_declares(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ProgramError) as caught:
        one(make())
    assert str(caught.value) == f"model.mlmodel: feature 'x' has {sentence}"


def saved(program: Program, folder: Path) -> Path:
    package = program.save(folder)
    file = weight_file(package)
    file.rename(file.with_name("1-weight.bin"))
    return package


@pytest.mark.parametrize("kind", ["pipeline", "pipelineClassifier", "pipelineRegressor"])
def test_parts_in_order(tmp_path: Path, kind: str) -> None:
    package = saved(three(kind), tmp_path)
    pipeline = read_any(package)
    assert isinstance(pipeline, Pipeline)
    assert [f.name for f in pipeline.inputs] == ["x"]
    assert [f.name for f in pipeline.outputs] == ["c", "d"]
    assert [[f.name for f in part.outputs] for part in pipeline.parts] == [["b"], ["c"], ["d"]]
    assert pipeline.parts[1].path == f"{package}, part 2"


def test_weights_of_a_part(tmp_path: Path) -> None:
    package = three().save(tmp_path)
    with pytest.raises(ProgramError, match=r"1-weight\.bin: the weights file is missing"):
        read_any(package)
    assert isinstance(read_any(package, weights=False), Pipeline)


def of_two(a: Program, b: Program, *parts: Program) -> Program:
    return chain(*parts, inputs=[given(a)], outputs=[made(b)])


def of_another_kind() -> Program:
    program = three()
    program.model.pipeline.models[1].neuralNetwork.SetInParent()
    return program


def with_a_state() -> Program:
    program = three()
    part = program.model.pipeline.models[0]
    named = part.mlProgram.functions["main"].inputs.add()
    named.name = "s"
    named.type.stateType.wrappedType.CopyFrom(part.mlProgram.functions["main"].inputs[0].type)
    feature = part.description.state.add()
    feature.name = "s"
    feature.type.stateType.arrayType.dataType = 65568
    return program


A, B, APART = stage("x", "y", 2), stage("y", "w", 2), stage("z", "w", 2)


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (of_another_kind(), "part 2 of the pipeline is a neuralNetwork, not an ML Program; convert "
         'it again with convert_to="mlprogram".'),
        (of_two(three(), three(), three()), "part 1 of the pipeline is a pipeline, not an ML "
         'Program; convert it again with convert_to="mlprogram".'),
        (chain(inputs=[], outputs=[]), "is a pipeline of no models."),
        (of_two(A, APART, A, APART),
         "part 2 of the pipeline takes 'z', which nothing before it gives."),
        (of_two(A, B, A), "the pipeline declares the output 'w', which no part gives."),
        (with_a_state(), "part 1 of the pipeline keeps states, which pipelines cannot pass on."),
    ],
)  # fmt: skip
def test_pipelines_that_are_refused(program: Program, sentence: str, tmp_path: Path) -> None:
    package = saved(program, tmp_path)
    with pytest.raises(ProgramError) as caught:
        read_any(package)
    assert str(caught.value) == f"{package}/Data/com.apple.CoreML/model.mlmodel: {sentence}"


@pytest.mark.parametrize("names", [(), ("a", "b"), ("a", "b", "a"), ("a", "", "c")])
def test_parts_without_names_of_their_own_are_numbered(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    whole = three()
    whole.model.pipeline.names.extend(names)
    pipeline = read_any(saved(whole, tmp_path))
    assert isinstance(pipeline, Pipeline)
    assert pipeline.names == ("part1", "part2", "part3")
