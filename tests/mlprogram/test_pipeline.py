"""Packages of several models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_any, read_model
from pytest_ane.mlprogram.records import MLModel, Pipeline
from tests.mlprogram.packages import Program, doubling, weight_file
from tests.mlprogram.pipelines import chain, given, made, stage, three


def saved(program: Program, folder: Path) -> Path:
    package = program.save(folder)
    file = weight_file(package)
    file.rename(file.with_name("1-weight.bin"))
    return package


def complaint(program: Program, tmp_path: Path) -> str:
    package = saved(program, tmp_path)
    with pytest.raises(ProgramError) as caught:
        read_any(package)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{package}/Data/com.apple.CoreML/model.mlmodel", "F")


@pytest.mark.parametrize("kind", ["pipeline", "pipelineClassifier", "pipelineRegressor"])
def test_parts_in_order(tmp_path: Path, kind: str) -> None:
    package = saved(three(kind), tmp_path)
    pipeline = read_any(package)
    assert isinstance(pipeline, Pipeline)
    assert [f.name for f in pipeline.inputs] == ["x"]
    assert [f.name for f in pipeline.outputs] == ["c", "d"]
    assert [[f.name for f in part.outputs] for part in pipeline.parts] == [["b"], ["c"], ["d"]]
    assert pipeline.parts[1].path == f"{package}, part 2"


def test_one_model_is_no_pipeline(tmp_path: Path) -> None:
    assert isinstance(read_any(doubling().save(tmp_path)), MLModel)


def test_who_wants_one_model_is_told_there_are_several(tmp_path: Path) -> None:
    package = saved(three(), tmp_path)
    with pytest.raises(ProgramError) as caught:
        read_model(package)
    assert str(caught.value) == (
        f"{package}: is a pipeline of 3 models, not one ML Program; "
        "choose one of part1, part2, part3."
    )


def test_weights_of_a_part(tmp_path: Path) -> None:
    package = three().save(tmp_path)
    with pytest.raises(ProgramError, match=r"1-weight\.bin: the weights file is missing"):
        read_any(package)
    assert isinstance(read_any(package, weights=False), Pipeline)


def test_a_part_of_another_kind(tmp_path: Path) -> None:
    program = three()
    program.model.pipeline.models[1].neuralNetwork.SetInParent()
    assert complaint(program, tmp_path) == (
        "F: part 2 of the pipeline is a neuralNetwork, not an ML Program; convert it again with "
        'convert_to="mlprogram".'
    )


def test_a_pipeline_within_a_pipeline(tmp_path: Path) -> None:
    inner = three()
    outer = chain(inner, inputs=[given(inner)], outputs=[made(inner)])
    assert "part 1 of the pipeline is a pipeline, not an ML Program" in complaint(outer, tmp_path)


def test_no_parts(tmp_path: Path) -> None:
    assert complaint(chain(inputs=[], outputs=[]), tmp_path) == "F: is a pipeline of no models."


def test_an_input_that_nothing_gives(tmp_path: Path) -> None:
    a, b = stage("x", "y", 2), stage("z", "w", 2)
    program = chain(a, b, inputs=[given(a)], outputs=[made(b)])
    assert complaint(program, tmp_path) == (
        "F: part 2 of the pipeline takes 'z', which nothing before it gives."
    )


def test_an_output_that_nothing_gives(tmp_path: Path) -> None:
    a, b = stage("x", "y", 2), stage("y", "w", 2)
    program = chain(a, inputs=[given(a)], outputs=[made(b)])
    assert complaint(program, tmp_path) == (
        "F: the pipeline declares the output 'w', which no part gives."
    )


def test_states(tmp_path: Path) -> None:
    program = three()
    part = program.model.pipeline.models[0]
    named = part.mlProgram.functions["main"].inputs.add()
    named.name = "s"
    named.type.stateType.wrappedType.CopyFrom(part.mlProgram.functions["main"].inputs[0].type)
    feature = part.description.state.add()
    feature.name = "s"
    feature.type.stateType.arrayType.dataType = 65568
    assert "part 1 of the pipeline keeps states" in complaint(program, tmp_path)


def test_a_part_is_chosen_as_a_function_is(tmp_path: Path) -> None:
    whole = three()
    whole.model.pipeline.names.extend(["first", "second", "third"])
    package = saved(whole, tmp_path)
    assert [f.name for f in read_model(package, function="second").outputs] == ["c"]
    sentence = "is a pipeline without an ML Program 'half'; it has first, second, third"
    with pytest.raises(ProgramError, match=sentence):
        read_any(package, function="half")


@pytest.mark.parametrize("names", [(), ("a", "b"), ("a", "b", "a"), ("a", "", "c")])
def test_parts_without_names_of_their_own_are_numbered(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    whole = three()
    whole.model.pipeline.names.extend(names)
    pipeline = read_any(saved(whole, tmp_path))
    assert isinstance(pipeline, Pipeline)
    assert pipeline.names == ("part1", "part2", "part3")
