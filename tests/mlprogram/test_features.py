"""Declared inputs, outputs and states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.features import read_features
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import DType, Feature

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


def test_a_fixed_shape() -> None:
    assert one(array()) == Feature("x", DType.FP16, (1, 4))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(65552, "fp16"), (65568, "fp32"), (65600, "fp64"), (131104, "int32"), (131080, "int8")],
)
def test_element_types(kind: int, dtype: str) -> None:
    assert one(array(kind=kind)).dtype == DType(dtype)


def test_ranges_and_an_unbounded_one() -> None:
    message = array()
    for low, high in ((1, 1), (2, -1)):
        size = message.type.multiArrayType.shapeRange.sizeRanges.add()
        size.lowerBound, size.upperBound = low, high
    assert one(message).ranges == ((1, 1), (2, None))


def test_enumerated_shapes() -> None:
    message = array()
    for shape in ((1, 4), (1, 8)):
        message.type.multiArrayType.enumeratedShapes.shapes.add().shape.extend(shape)
    assert one(message).enumerated == ((1, 4), (1, 8))


def test_a_state() -> None:
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


def test_an_image() -> None:
    message = description()
    message.type.imageType.width, message.type.imageType.height = 4, 2
    message.type.imageType.colorSpace = 30
    assert one(message) == Feature("x", DType.UINT8, (2, 4), kind="image", color="BGR")
    message.type.imageType.colorSpace = 40
    assert one(message).dtype is DType.FP16


def test_images_of_several_sizes() -> None:
    """Core ML writes width before height; shapes are the other way round."""
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


def test_an_unknown_element_type() -> None:
    with pytest.raises(ProgramError) as caught:
        one(array(kind=5))
    assert str(caught.value) == "model.mlmodel: feature 'x' has the unknown type 5."


def test_an_impossible_shape() -> None:
    with pytest.raises(ProgramError) as caught:
        one(array(shape=(1, -4)))
    assert str(caught.value) == "model.mlmodel: feature 'x' has the impossible shape [1, -4]."


def image(**fields: int) -> Any:
    message = description()
    for name, value in fields.items():
        setattr(message.type.imageType, name, value)
    return message


def test_colors_nobody_defined() -> None:
    with pytest.raises(ProgramError) as caught:
        one(image(colorSpace=7))
    assert str(caught.value) == "model.mlmodel: feature 'x' has the unknown colors 7."


def test_an_impossible_image() -> None:
    with pytest.raises(ProgramError) as caught:
        one(image(height=-2, width=4))
    assert str(caught.value) == "model.mlmodel: feature 'x' has the impossible shape [-2, 4]."


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(1, 8)], "has 1 ranges for 2 dimensions."),
        ([(1, 1), (9, 8)], "has the impossible range 9..8."),
    ],
)
def test_impossible_ranges(ranges: list[tuple[int, int]], message: str) -> None:
    described = array()
    for low, high in ranges:
        size = described.type.multiArrayType.shapeRange.sizeRanges.add()
        size.lowerBound, size.upperBound = low, high
    with pytest.raises(ProgramError) as caught:
        one(described)
    assert str(caught.value) == f"model.mlmodel: feature 'x' {message}"
