"""Compiled models, and pipelines of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.executor import Session, open_session
from pytest_ane.mlprogram.model import entry_points, read_any, read_model
from pytest_ane.mlprogram.records import DType, Feature, Pipeline
from tests.detectors import detector
from tests.mlprogram import compiled
from tests.mlprogram.compiled_pipelines import coremldata, save_compiled
from tests.mlprogram.packages import doubling
from tests.mlprogram.pipelines import chain, given, made, stage, three
from tests.mlprogram.same import differences
from tests.mlprogram.test_features import saved

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"


def complaint(folder: Path, *, weights: bool = True) -> str:
    """The one sentence of the error, the model's folder cut off."""
    with pytest.raises(ProgramError) as caught:
        read_model(folder, weights=weights)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "pull"))
    return text.replace(str(folder), "C")


def test_a_compiled_model_has_everything_its_package_has(tmp_path: Path) -> None:
    program = doubling()
    program.model.description.metadata.userDefined["source"] = "hand"
    twin = read_model(compiled.save(program, tmp_path))
    model = read_model(tmp_path / "model.mlpackage")
    assert differences(model, twin) == []
    assert twin.path == str(tmp_path / "model.mlmodelc")
    assert twin.weights == str(tmp_path / "model.mlmodelc" / "weights")
    assert (twin.inputs, twin.outputs, twin.states) == (model.inputs, model.outputs, model.states)
    assert twin.specification_version == 9
    assert twin.metadata == {"source": "hand"}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(Session(twin).predict({"x": x})["y"], 2 * x)


@pytest.mark.parametrize(
    ("entry", "feature"),
    [
        ({"type": "MultiArray", "dataType": "Float16", "shape": "[2, 3]"},
         Feature("x", DType.FP16, (2, 3))),
        ({"type": "MultiArray", "dataType": "Int32", "shape": [1], "isOptional": "1"},
         Feature("x", DType.INT32, (1,), optional=True)),
        ({"type": "MultiArray", "dataType": "Float32", "shape": "[1, 1]",
          "shapeRange": "[[1, 1], [2, -1]]"},
         Feature("x", DType.FP32, (1, 1), ((1, 1), (2, None)))),
        ({"type": "MultiArray", "dataType": "Float32", "shape": "[1, 1]",
          "enumeratedShapes": "[[1, 1], [1, 64]]"},
         Feature("x", DType.FP32, (1, 1), (), ((1, 1), (1, 64)))),
        ({"type": "Image", "height": "224", "width": "320", "colorspace": "RGB"},
         Feature("x", DType.UINT8, (224, 320), kind="image", color="RGB")),
        ({"type": "Int64"}, Feature("x", DType.INT64, (), kind="int64Type")),
        ({"type": "String"}, Feature("x", DType.STRING, (), kind="stringType")),
    ],
)  # fmt: skip
def test_inputs_in_the_compilers_words(tmp_path: Path, entry: Any, feature: Feature) -> None:
    folder = compiled.changed(
        compiled.save(doubling(), tmp_path), inputSchema=[{"name": "x", **entry}]
    )
    assert read_model(folder).inputs == (feature,)


def test_a_state(tmp_path: Path) -> None:
    folder = compiled.save(doubling(), tmp_path)
    text = (folder / "model.mil").read_text("utf-8")
    text = text.replace("main<ios18>(", "main<ios18>(state<tensor<fp16, [1, 8]>> kv, ")
    (folder / "model.mil").write_text(text, "utf-8")
    entry = {"name": "kv", "type": "State", "dataType": "Float16", "shape": "[1, 8]"}
    model = read_model(compiled.changed(folder, stateSchema=[entry]))
    assert model.states == (Feature("kv", DType.FP16, (1, 8), kind="state"),)


def test_a_table_for_each_function(tmp_path: Path) -> None:
    folder = compiled.save(doubling(), tmp_path)
    entry = {"name": "x", "type": "MultiArray", "dataType": "Float16", "shape": "[2, 3]"}
    tables = [{"name": "other", "inputSchema": []}, {"name": "main", "inputSchema": [entry]}]
    model = read_model(compiled.changed(folder, functions=tables))
    assert [f.dtype for f in model.inputs] == [DType.FP16]


def test_folders(tmp_path: Path) -> None:
    folder = compiled.save(doubling(), tmp_path).rename(tmp_path / "compiled")
    assert read_model(folder).inputs
    folder = compiled.save(doubling(), tmp_path / "other")
    (folder / "weights" / "weight.bin").unlink()
    assert read_model(folder, weights=False).program.main.name == "main"
    assert complaint(folder) == (
        "C/weights/weight.bin: the weights file is missing; copy the whole package."
    )
    assert complaint(tmp_path / "a.mlmodelc") == "C: not an .mlmodelc (no such folder)."
    (tmp_path / "b.mlmodelc").touch()
    assert complaint(tmp_path / "b.mlmodelc") == "C: not an .mlmodelc (it is a file)."


def put(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def replace_in(old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / "model.mil").read_text("utf-8")
        (folder / "model.mil").write_text(text.replace(old, new), "utf-8")

    return change


def folder_in_place(folder: Path) -> None:
    (folder / "model.mil").unlink()
    (folder / "model.mil").mkdir()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *((lambda f, name=name: (f / name).unlink(),
           f"C/{name}: missing; the compiled model is incomplete.")
          for name in ("model.mil", "metadata.json")),
        *((put(name, POINTER), f"C/{name}: is a Git LFS pointer, not the {what}; run: git lfs pull")
          for name, what in (("model.mil", "file"), ("metadata.json", "file"),
                             ("weights/weight.bin", "weights"))),
        (folder_in_place, "C/model.mil: cannot be read (it is no regular file)."),
        *((lambda f, name=name: os.truncate(f / name, (1 << 30) + 1),
           f"C/{name}: cannot be read (1,073,741,825 bytes are more than it should have).")
          for name in ("model.mil", "metadata.json")),
        (put("model.mil", b"program(1.0)\n\xff"), "C/model.mil:2: not UTF-8; the file is damaged."),
        (put("model.mil", b"program(1.0) {\n  oops"), "C/model.mil:2:3: 'oops' has no place here."),
        (lambda f: compiled.changed(f, inputSchema=[{"name": "q", "type": "Double"}]),
         "C/metadata.json: the model declares the input 'q', which its program does not have."),
        *((lambda f, entry=entry: compiled.changed(f, inputSchema=[{"name": "x", **entry}]),
           f"C/metadata.json: feature 'x' has {said}")
          for entry, said in (
              ({"type": "MultiArray", "dataType": "Float8", "shape": "[1]"},
               "the unknown type Float8."),
              ({"type": "MultiArray", "dataType": "Int32", "shape": "[1]",
                "shapeRange": "[[-1, 1]]"}, "the impossible range -1..1."),
              ({"type": "Image", "height": "-2", "width": "4"}, "the impossible shape [-2, 4]."))),
        *((replace_in("@model_path/weights/weight.bin", path),
           f"C: names weights outside the package: {path!r}.")
          for path in ("@model_path/weights/../../x", "/etc/passwd", "@model_path/x")),
        (replace_in("uint64(64)", "uint64(6400)"),
         "C/weights/weight.bin: has 192 bytes, too few for the blob at 6400; the file is cut short "
         "or belongs to another package."),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(
    tmp_path: Path, change: Callable[[Path], object], sentence: str
) -> None:
    folder = compiled.save(doubling(), tmp_path)
    change(folder)
    assert complaint(folder) == sentence


def without_kind(folder: Path) -> None:
    (folder / "model.espresso.net").write_text("{}")
    (folder / "metadata.json").unlink()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (without_kind, "neuralNetwork"),
        (lambda f: compiled.changed(f, modelType={"name": "MLModelType_neuralNetwork"}),
         "neuralNetwork"),
        (lambda f: compiled.changed(f, modelType={"name": "MLModelType_pipeline"}), "pipeline"),
    ],
)  # fmt: skip
def test_other_kinds_are_refused(
    tmp_path: Path, change: Callable[[Path], object], kind: str
) -> None:
    folder = compiled.save(doubling(), tmp_path)
    (folder / "model.mil").unlink()
    change(folder)
    assert complaint(folder) == (
        f'C: is a {kind}, not an ML Program; convert it again with convert_to="mlprogram".'
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"[3]", b"\xff\xfe", b"[" * 100_000, b'[{"modelType": 3}]',
     b'[{"specificationVersion": []}]', b'[{"functions": 5}]', b'[{"inputSchema": [5]}]',
     b'[{"inputSchema": [{"name": "x"}]}]', b'[{"inputSchema": "x"}]',
     b'[{"userDefinedMetadata": 5}]', b'[{"specificationVersion": 1e999}]',
     b'[{"inputSchema": [{"name": "x", "type": "Image", "height": "?"}]}]',
     b'[{"inputSchema": [{"name": "x", "type": "MultiArray", "dataType": "Int8", '
     b'"shape": "[[["}]}]',
     b'[{"inputSchema": [{"name": "x", "type": "MultiArray", "dataType": "Int8", '
     b'"shape": "[1]", "shapeRange": "[[1]]"}]}]'],
)  # fmt: skip
def test_damaged_metadata(tmp_path: Path, content: bytes) -> None:
    folder = compiled.save(doubling(), tmp_path)
    (folder / "metadata.json").write_bytes(content)
    text = complaint(folder)
    assert text.startswith("C/metadata.json: damaged (")
    assert text.endswith("compile the model again.")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    model = read_model(doubling().save(tmp_path))
    with pytest.raises(ProgramError, match=r"taken/x\.mlmodelc: cannot be written"):
        write_compiled(model, tmp_path / "taken" / "x.mlmodelc")


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
        (lambda f: (f / "model1" / "model.mil").unlink(),
         r"model1/model\.mil: missing; the compiled model"),
        (lambda f: (f / "model2" / "weights").rename(f / "w"), None),
        (lambda f: (f / "modelNames/coremldata.bin").write_bytes(b"\x09"), "damaged .unpack"),
        (lambda f: (f / "modelNames/coremldata.bin").write_bytes(b"\xff" * 8), "damaged .1844"),
    ],
)  # fmt: skip
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


def test_another_kind_is_named(twins: tuple[Path, Path], tmp_path: Path) -> None:
    (twins[1] / "model1" / "model.mil").rename(twins[1] / "model1" / "model.espresso.net")
    with pytest.raises(ProgramError, match="part 2 of the pipeline is a neuralNetwork, not an ML"):
        read_any(twins[1])
    a, b = stage("x", "y", 2), stage("y", "z", 2)
    package = saved(chain(a, b, inputs=[given(a)], outputs=[made(b)]), tmp_path / "other")
    compiled = save_compiled(package, tmp_path / "other.mlmodelc")
    (compiled / "model1" / "model.mil").unlink()
    b.model.glmClassifier.SetInParent()
    (compiled / "model1" / "coremldata.bin").write_bytes(coremldata(b.model))
    with pytest.raises(ProgramError, match="part 2 of the pipeline is a glmClassifier, not an ML"):
        read_any(compiled)
