"""Compiled pipelines, and compiled models without `metadata.json`: read and run, or a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.executor import open_session
from pytest_ane.mlprogram.model import entry_points, read_any, read_model
from pytest_ane.mlprogram.records import Pipeline
from tests.detectors import detector
from tests.mlprogram.compiled_pipelines import coremldata, save_compiled
from tests.mlprogram.packages import doubling
from tests.mlprogram.pipelines import chain, given, made, stage, three
from tests.mlprogram.same import differences
from tests.mlprogram.test_pipeline import saved


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    """A pipeline of three programs that it names, and its compiled twin."""
    whole = three()
    whole.model.pipeline.names.extend(["first", "second", "third"])
    package = saved(whole, tmp_path)
    return package, save_compiled(package, tmp_path / "model.mlmodelc")


def test_a_compiled_pipeline_is_its_package(twins: tuple[Path, Path]) -> None:
    a, b = map(read_any, twins)
    assert isinstance(a, Pipeline)
    assert isinstance(b, Pipeline)
    assert (a.inputs, a.outputs, a.names) == (b.inputs, b.outputs, b.names)
    assert a.specification_version == b.specification_version
    for mine, theirs in zip(a.programs.values(), b.programs.values(), strict=True):
        assert (mine.inputs, mine.outputs) == (theirs.inputs, theirs.outputs)
        assert differences(mine.program, theirs.program) == []
    x = np.array([[1.0, 10.0]], np.float32)
    results = [open_session(model).predict({"x": x}) for model in (a, b)]
    assert results[0].keys() == results[1].keys()
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


def test_its_parts_are_chosen_by_name(twins: tuple[Path, Path]) -> None:
    package, compiled = twins
    assert entry_points(compiled) == entry_points(package) == ("first", "second", "third")
    assert [f.name for f in read_model(compiled, function="second").outputs] == ["c"]
    parts = [read_model(path, function="second").part for path in (package, compiled)]
    assert parts == ["model1", "model1"]
    with pytest.raises(ProgramError, match="without an ML Program 'half'; it has first, second"):
        read_any(compiled, function="half")
    with pytest.raises(ProgramError, match="is a pipeline of 3 models, not one ML Program"):
        read_model(compiled)


def test_without_names_the_parts_are_numbered(tmp_path: Path) -> None:
    compiled = save_compiled(saved(three(), tmp_path), tmp_path / "model.mlmodelc")
    assert entry_points(compiled) == ("part1", "part2", "part3")
    compiled.rename(tmp_path / "elsewhere")  # It is known by its content, too.
    assert isinstance(read_any(tmp_path / "elsewhere"), Pipeline)


def test_a_compiled_detector_is_refused_and_its_program_is_not(tmp_path: Path) -> None:
    """The suppression's thresholds are in no file that can be read."""
    package = detector(tmp_path / "d.mlpackage")
    compiled = save_compiled(package, tmp_path / "d.mlmodelc")
    with pytest.raises(ProgramError) as caught:
        read_any(compiled)
    assert str(caught.value) == (
        f"{compiled}: part 2 of the pipeline is a nonMaximumSuppression, whose thresholds a "
        "compiled model keeps in a form that is not published; name the .mlpackage that it was "
        "compiled from."
    )
    assert entry_points(compiled) == entry_points(package) == ("part1",)
    a, b = (read_model(path, function="part1") for path in (package, compiled))
    assert (a.inputs, a.outputs) == (b.inputs, b.outputs)
    assert a.inputs[0].kind == "image"
    assert differences(a.program, b.program) == []


def test_a_single_model_needs_no_metadata_either(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    compiled = save_compiled(package, tmp_path / "one.mlmodelc")
    a, b = read_model(package), read_model(compiled)
    assert (a.inputs, a.outputs, a.states, a.metadata) == (
        b.inputs, b.outputs, b.states, b.metadata,
    )  # fmt: skip
    assert a.specification_version == b.specification_version == 9


def cut(folder: Path) -> None:
    file = folder / "coremldata.bin"
    file.write_bytes(file.read_bytes()[:70])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut, r"coremldata\.bin: has a form that is not known, and there is no metadata\.json; co"),
        (lambda f: (f / "coremldata.bin").write_bytes(b""), "has a form that is not known"),
        (lambda f: (f / "coremldata.bin").write_bytes(b"\xff" * 99), "a form that is not known"),
        (lambda f: (f / "coremldata.bin").unlink(), r"metadata\.json: missing; the compiled model"),
        (lambda f: cut(f / "model1"), r"model1/coremldata\.bin: has a form that is not known"),
        (
            lambda f: (f / "model1" / "model.mil").unlink(),
            r"model1/model\.mil: missing; the compiled model",
        ),
        (lambda f: (f / "model2" / "weights").rename(f / "w"), None),
        (lambda f: (f / "modelNames/coremldata.bin").write_bytes(b"\x09"), "damaged .unpack"),
        (lambda f: (f / "modelNames/coremldata.bin").write_bytes(b"\xff" * 8), "damaged .1844"),
    ],
)
def test_damage_is_one_sentence(
    twins: tuple[Path, Path], damage: Callable[[Path], Any], sentence: str | None
) -> None:
    compiled = twins[1]
    damage(compiled)
    if sentence is None:  # The third part has no weights.
        assert isinstance(read_any(compiled), Pipeline)
        return
    with pytest.raises(ProgramError, match=sentence) as caught:
        read_any(compiled)
    assert "\n" not in str(caught.value)


def test_a_part_of_a_neural_network(twins: tuple[Path, Path]) -> None:
    (twins[1] / "model1" / "model.mil").rename(twins[1] / "model1" / "model.espresso.net")
    with pytest.raises(ProgramError, match="part 2 of the pipeline is a neuralNetwork, not an ML"):
        read_any(twins[1])


def test_another_kind_is_named(tmp_path: Path) -> None:
    a, b = stage("x", "y", 2), stage("y", "z", 2)
    package = saved(chain(a, b, inputs=[given(a)], outputs=[made(b)]), tmp_path)
    compiled = save_compiled(package, tmp_path / "model.mlmodelc")
    (compiled / "model1" / "model.mil").unlink()
    b.model.glmClassifier.SetInParent()
    (compiled / "model1" / "coremldata.bin").write_bytes(coremldata(b.model))
    with pytest.raises(ProgramError, match="part 2 of the pipeline is a glmClassifier, not an ML"):
        read_any(compiled)
