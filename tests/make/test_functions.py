"""One function of a package of several, as a package of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.make.functions import extract_function
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.executor import open_session
from pytest_ane.mlprogram.model import read_model
from tests import device_models


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_models.save(tmp_path_factory.mktemp("packages"))["functions"]


def digest(package: Path) -> str:
    files = sorted(file for file in package.rglob("*") if file.is_file())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_it_computes_as_the_function_does(package: Path, tmp_path: Path) -> None:
    before = digest(package)
    own = extract_function(package, "two", tmp_path / "two.mlpackage")
    assert digest(package) == before
    x = np.random.default_rng(3).standard_normal((1, 64, 1, 4)).astype(np.float32)
    (expected,) = open_session(read_model(package, function="two")).predict({"x": x}).values()
    (output,) = open_session(read_model(own)).predict({"x": x}).values()
    assert np.array_equal(output, expected)
    assert read_model(own).function == ""


def test_a_function_that_is_not_there(package: Path, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="has no function 'three'"):
        extract_function(package, "three", tmp_path / "three.mlpackage")
