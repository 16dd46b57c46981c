"""Packages: their files, paths and functions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.mlprogram.checks import stays_inside
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import counterpart, entry_points, read_functions, read_model
from pytest_ane.mlprogram.records import DType
from tests import multifunction
from tests.mlprogram import compiled
from tests.mlprogram.packages import doubling, model_file, weight_file
from tests.multifunction import FUNCTIONS

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"


def complaint(package: Path, *, weights: bool = True) -> str:
    """The one sentence of the error, the package's folder cut off."""
    with pytest.raises(ProgramError) as caught:
        read_model(package, weights=weights)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".") or text.endswith("pull")
    return text.replace(str(package), "P")


def test_a_model_has_everything(tmp_path: Path) -> None:
    program = doubling()
    program.model.description.metadata.userDefined["source"] = "hand"
    package = program.save(tmp_path)
    model = read_model(package)
    assert model.path == str(package)
    assert model.weights == str(weight_file(package).parent)
    assert model.specification_version == 9
    assert [f.name for f in model.inputs] == ["x"]
    assert [f.name for f in model.outputs] == ["y"]
    assert model.states == ()
    assert model.metadata == {"source": "hand"}
    assert [op.op for op in model.program.walk()] == ["const", "add"]


def test_structure_alone_needs_no_weights(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    weight_file(package).unlink()
    assert read_model(package, weights=False).program.main.name == "main"
    assert complaint(package) == (
        "P/Data/com.apple.CoreML/weights/weight.bin: the weights file is missing; "
        "copy the whole package."
    )


def test_equal_bytes_are_read_once_and_others_whatever_their_time(tmp_path: Path) -> None:
    program = doubling()
    program.model.description.metadata.userDefined["source"] = "hand"
    package = program.save(tmp_path)
    first, file = read_model(package), model_file(package)
    assert read_model(package) is first
    status = file.stat()
    file.write_bytes(file.read_bytes().replace(b"hand", b"mind"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read_model(package).metadata == {"source": "mind"}
    weight_file(package).unlink()
    assert "the weights file is missing" in complaint(package)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("none", "P: not an .mlpackage (no such folder)."),
        ("a.mlpackage", "P: not an .mlpackage (it is a file)."),
        ("a.mlmodel", "P: is one file, not an .mlpackage of an ML Program; convert it again with "
         'convert_to="mlprogram".'),
    ],
)  # fmt: skip
def test_what_is_no_package(tmp_path: Path, name: str, sentence: str) -> None:
    if name != "none":
        (tmp_path / name).touch()
    assert complaint(tmp_path / name) == sentence


def put(name: str, text: str) -> Callable[[Path], object]:
    return lambda package: (package / name).write_text(text)


def with_root(path: object) -> Callable[[Path], object]:
    manifest = {"itemInfoEntries": {"A": {"path": path}}, "rootModelIdentifier": "A"}
    return put("Manifest.json", json.dumps(manifest))


MODEL = "Data/com.apple.CoreML/model.mlmodel"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: (p / "Manifest.json").unlink(),
         "P/Manifest.json: missing; the package is incomplete."),
        *((with_root(path), f"P/Manifest.json: names a model outside the package: {path!r}.")
          for path in ("../../x", "/etc/passwd", "../../../../etc/passwd")),
        *((put(name, POINTER), f"P/{name}: is a Git LFS pointer, not the {what}; run: git lfs pull")
          for name, what in (("Manifest.json", "file"), (MODEL, "file"), (WEIGHTS, "weights"))),
        (put(MODEL, ""), f"P/{MODEL}: is a model of no kind, not an ML Program; convert it again "
         'with convert_to="mlprogram".'),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(
    tmp_path: Path, change: Callable[[Path], object], sentence: str
) -> None:
    package = doubling().save(tmp_path)
    change(package)
    assert complaint(package) == sentence


def test_the_older_kind_is_refused(tmp_path: Path) -> None:
    program = doubling()
    program.model.neuralNetwork.SetInParent()
    assert f"P/{MODEL}: is a neuralNetwork, not an" in complaint(program.save(tmp_path))


INSIDE = ["weight.bin", "weights/weight.bin", "a/./b", "..weights", "a..b/c"]
OUTSIDE = ["", ".", "..", "../weight.bin", "a/../../b", "/etc/passwd"]
OUTSIDE += ["C:\\x", "\\x", "a\\..\\b", "C:x"]


@pytest.mark.parametrize("name", INSIDE + OUTSIDE)
def test_paths_below_the_package_and_those_that_leave_it(name: str) -> None:
    assert stays_inside(name) is (name in INSIDE)


LENGTHS = sorted(FUNCTIONS.items())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = multifunction.make(tmp_path_factory.mktemp("functions"))
    return made | {"compiled": multifunction.compiled(made["reference"])}


def test_one_function_has_no_names(packages: dict[str, Path], tmp_path: Path) -> None:
    assert entry_points(packages["single"]) == ()
    assert entry_points(compiled.save(doubling(), tmp_path)) == ()
    twin = multifunction.compiled(packages["right"])
    for file in (twin / "weights").iterdir():
        file.unlink()
    assert entry_points(twin) == ("decode", "verify4")


@pytest.mark.parametrize("form", ["reference", "compiled"])
@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_a_function_is_read_without_the_others(
    packages: dict[str, Path], form: str, name: str, length: int
) -> None:
    model = read_model(packages[form], function=name)
    assert (model.function, [*model.program.functions], model.main.name) == (name, [name], name)
    assert [f.shape for f in model.inputs] == [(1, 8, 1, length)]
    assert [f.dtype for f in model.outputs] == [DType.FP32]


@pytest.mark.parametrize("form", ["reference", "compiled"])
def test_the_default_one_runs_where_none_is_named(packages: dict[str, Path], form: str) -> None:
    model = read_model(packages[form])
    assert [*model.program.functions] == ["decode", "verify4"]
    assert (model.function, model.main.name) == ("decode", "decode")


def test_the_default_of_a_compiled_model_is_what_it_says(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    ones = {"a": packages["single"], "b": packages["single-near"]}
    package = multifunction.save(tmp_path / "ab.mlpackage", ones, default="b")
    twin = multifunction.compiled(package)
    assert [read_model(form).function for form in (package, twin)] == ["b", "b"]


@pytest.mark.parametrize("form", ["reference", "compiled"])
def test_a_function_that_is_not_there(packages: dict[str, Path], form: str) -> None:
    with pytest.raises(ProgramError, match=r"has no function 'verify'; it has decode, verify4\.$"):
        read_model(packages[form], function="verify")


def test_a_compiled_model_that_describes_another_function(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    """Its interface is not lent to a function that has none of its own."""
    twin = multifunction.compiled(packages["swapped"])
    (content,) = json.loads((twin / "metadata.json").read_text())
    content["functions"] = [t for t in content["functions"] if t["name"] == "decode"]
    (twin / "metadata.json").write_text(json.dumps([content]))
    assert read_model(twin, function="decode").inputs
    with pytest.raises(ProgramError, match="does not describe the function 'verify4'"):
        read_model(twin, function="verify4")


def test_the_counterpart(packages: dict[str, Path]) -> None:
    assert counterpart(packages["reference"], "verify4") == "verify4"
    assert counterpart(packages["single"], "verify4") is None
    assert counterpart(packages["reference"], None) is None
    with pytest.raises(ProgramError, match="'verify4' to compare with; it has first, second"):
        counterpart(packages["foreign"], "verify4")
    assert [m.function for m in read_functions(packages["compiled"])] == ["decode", "verify4"]
    assert read_functions(packages["single"]) == ()
