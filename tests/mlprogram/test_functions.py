"""Functions of packages and of compiled models: their names, and each read without the others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import counterpart, entry_points, read_functions, read_model
from pytest_ane.mlprogram.records import DType
from tests import multifunction
from tests.mlprogram import compiled
from tests.mlprogram.packages import doubling
from tests.multifunction import FUNCTIONS

LENGTHS = sorted(FUNCTIONS.items())


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = multifunction.make(tmp_path_factory.mktemp("functions"))
    return made | {"compiled": multifunction.compiled(made["reference"])}


@pytest.mark.parametrize("form", ["reference", "compiled"])
def test_names(packages: dict[str, Path], form: str) -> None:
    assert entry_points(packages[form]) == ("decode", "verify4")


def test_one_function_has_no_names(packages: dict[str, Path], tmp_path: Path) -> None:
    assert entry_points(packages["single"]) == ()
    assert entry_points(compiled.save(doubling(), tmp_path)) == ()


def test_names_need_no_weights(packages: dict[str, Path], tmp_path: Path) -> None:
    twin = multifunction.compiled(packages["right"])
    for file in (twin / "weights").iterdir():
        file.unlink()
    assert entry_points(twin) == ("decode", "verify4")


@pytest.mark.parametrize("name", ["no.mlpackage", "no.mlmodelc"])
def test_what_is_missing_has_no_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProgramError, match=r"no such folder|missing"):
        entry_points(tmp_path / name)


@pytest.mark.parametrize("form", ["reference", "compiled"])
@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_a_function_is_read_without_the_others(
    packages: dict[str, Path], form: str, name: str, length: int
) -> None:
    model = read_model(packages[form], function=name)
    assert (model.function, [*model.program.functions], model.main.name) == (name, [name], name)
    assert [f.shape for f in model.inputs] == [(1, 8, 1, length)]
    assert [f.dtype for f in model.outputs] == [DType.FP32]


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_a_compiled_twin_computes_the_same(
    packages: dict[str, Path], name: str, length: int
) -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 1, length)).astype(np.float32)
    forms = (packages["reference"], packages["compiled"])
    a, b = (Session(read_model(form, function=name)).predict({"x": x})["y"] for form in forms)
    np.testing.assert_array_equal(a, b)
    assert a.any()


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


def test_each_function_of_a_package(packages: dict[str, Path]) -> None:
    assert [m.function for m in read_functions(packages["compiled"])] == ["decode", "verify4"]
    assert read_functions(packages["single"]) == ()
