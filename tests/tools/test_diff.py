"""`pytest-ane diff`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.detectors import detector
from tests.tools.conftest import AsJson, Says
from tests.tools.test_operations import chain

PAIR = ("diff", "b.mlpackage", "a.mlpackage")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, factor in (("a", 1.0), ("b", 1.05)):
        chain(factor).save(tmp_path / name).rename(tmp_path / f"{name}.mlpackage")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_operation_that_differs_is_named(folder: Path, says: Says) -> None:
    assert says(*PAIR, code=1) == [
        "! b  mul                  relative 0.05, largest 0.0574",
        "! y  add                  relative 0.05, largest 0.115",
        "3 operations compared, by name",
        "pytest-ane: mul 'b' is the first operation that differs by more than 0.01: "
        "relative difference 0.05.",
    ]


def test_as_json(folder: Path, as_json: AsJson) -> None:
    found = as_json(*PAIR, code=1)
    assert [d["name"] for d in found["differences"] if d["relative"] > 0.01] == ["b", "y"]
    assert found["error"].startswith("mul 'b' is the first operation that differs by more than")
    assert "error" not in as_json("diff", "a.mlpackage", "a.mlpackage")


def test_within_the_tolerance_and_with_given_inputs(folder: Path, says: Says) -> None:
    assert says(*PAIR, "--tolerance", "0.06")[-1] == "no operation differs by more than 0.06"
    np.save("x.npy", np.float32([[0, 0, 0]]))
    assert says(*PAIR, "--input", "x=x.npy")[-1].startswith("no operation differs")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["c.mlpackage"], "c.mlpackage: not an .mlpackage (no such folder)."),
        (["b.mlpackage", "--tolerance=nan"], "give a number from 0"),
        (["b.mlpackage", "--tolerance=-1"], "give a number from 0"),
        (["d.mlpackage"], "d.mlpackage: is a pipeline of 2 models, not one ML Program; choose one"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, says: Says, arguments: list[str], words: str
) -> None:
    if arguments[0] == "d.mlpackage":
        detector(Path("d.mlpackage"))
    (line,) = says("diff", "a.mlpackage", *arguments, code=1)
    assert words in line


def test_pipelines_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    monkeypatch.chdir(tmp_path)
    detector(Path("a.mlpackage"), names=True)
    detector(Path("same.mlpackage"), names=True)
    assert "no operation differs by more than 0.01" in says("diff", "a.mlpackage", "same.mlpackage")
    detector(Path("b.mlpackage"), names=True, spoilt=0.5)
    *lines, error = says(*PAIR, code=1)
    assert any("! decoder/raw_confidence" in line for line in lines)
    assert "1 only in the first" in lines[-1]
    assert error.startswith("pytest-ane: sigmoid 'decoder/")
    detector(Path("c.mlpackage"), names=True, iou=0.5, labels=("a", "b", "c"))
    assert says("diff", "c.mlpackage", "a.mlpackage", code=1)[-1] == (
        "pytest-ane: nonMaximumSuppression 'nms' is the first operation that differs by more than "
        "0.01: iouThreshold 0.5 in place of 0.3, classLabels ('a', 'b', 'c') in place of ('cat', "
        "'dog', 'bird')."
    )
