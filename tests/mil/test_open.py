"""Operations counted without reading a program."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil import count_operations, read_model
from pytest_ane.mil.compiled import write_compiled
from tests.plugin.projects import make_packages


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_packages(tmp_path_factory.mktemp("packages"))


def read(path: Path) -> Counter[str]:
    functions = read_model(path).program.functions.values()
    return Counter(op.op for function in functions for op in function.walk())


def test_they_are_those_of_the_program(packages: dict[str, Path]) -> None:
    for path in packages.values():
        assert count_operations(path) == read(path)
    assert count_operations(packages["good"])["conv"] == 1


def test_of_a_compiled_model_too(packages: dict[str, Path], tmp_path: Path) -> None:
    compiled = write_compiled(read_model(packages["good"]), tmp_path / "good.mlmodelc")
    assert count_operations(compiled) == count_operations(packages["good"])


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such folder"):
        count_operations(tmp_path / "none.mlpackage")
