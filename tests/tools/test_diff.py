"""`pytest-ane diff`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.cli import main
from tests.detectors import detector
from tests.tools.conftest import AsJson
from tests.tools.test_operations import chain


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, factor in (("a", 1.0), ("b", 1.05)):
        chain(factor).save(tmp_path / name).rename(tmp_path / f"{name}.mlpackage")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_operation_that_differs_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "b.mlpackage", "a.mlpackage"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "! b  mul                  relative 0.05, largest 0.0574",
        "! y  add                  relative 0.05, largest 0.115",
        "3 operations compared, by name",
    ]
    assert err == (
        "pytest-ane: mul 'b' is the first operation that differs by more than 0.01: "
        "relative difference 0.05.\n"
    )


def test_as_json(folder: Path, as_json: AsJson) -> None:
    found = as_json("diff", "b.mlpackage", "a.mlpackage", code=1)
    assert [d["name"] for d in found["differences"] if d["relative"] > 0.01] == ["b", "y"]
    assert found["error"].startswith("mul 'b' is the first operation that differs by more than")
    assert "error" not in as_json("diff", "a.mlpackage", "a.mlpackage")


def test_within_the_tolerance(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "b.mlpackage", "a.mlpackage", "--tolerance", "0.06"]) == 0
    assert capsys.readouterr().out.endswith("no operation differs by more than 0.06\n")


def test_given_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.float32([[0, 0, 0]]))
    assert main(["diff", "a.mlpackage", "b.mlpackage", "--input", "x=x.npy"]) == 0
    assert "no operation differs" in capsys.readouterr().out


def test_a_missing_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a.mlpackage", "c.mlpackage"]) == 1
    assert (
        capsys.readouterr().err == "pytest-ane: c.mlpackage: not an .mlpackage (no such folder).\n"
    )


@pytest.mark.parametrize("tolerance", ["nan", "-1"])
def test_a_tolerance_that_is_none(
    folder: Path, capsys: pytest.CaptureFixture[str], tolerance: str
) -> None:
    assert main(["diff", "a.mlpackage", "b.mlpackage", f"--tolerance={tolerance}"]) == 1
    assert "give a number from 0" in capsys.readouterr().err


def test_pipelines_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    detector(Path("a.mlpackage"), names=True)
    detector(Path("same.mlpackage"), names=True)
    assert main(["diff", "a.mlpackage", "same.mlpackage"]) == 0
    assert "no operation differs by more than 0.01" in capsys.readouterr().out
    detector(Path("b.mlpackage"), names=True, spoilt=0.5)
    assert main(["diff", "b.mlpackage", "a.mlpackage"]) == 1
    out, err = capsys.readouterr()
    assert "! decoder/raw_confidence" in out
    assert "1 only in the first" in out
    assert err.startswith("pytest-ane: sigmoid 'decoder/")
    detector(Path("c.mlpackage"), names=True, iou=0.5, labels=("a", "b", "c"))
    assert main(["diff", "c.mlpackage", "a.mlpackage"]) == 1
    err = capsys.readouterr().err
    assert err == (
        "pytest-ane: nonMaximumSuppression 'nms' is the first operation that differs by more than "
        "0.01: iouThreshold 0.5 in place of 0.3, classLabels ('a', 'b', 'c') in place of ('cat', "
        "'dog', 'bird').\n"
    )


def test_a_pipeline_and_a_program(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detector(Path("d.mlpackage"))
    assert main(["diff", "d.mlpackage", "a.mlpackage"]) == 1
    assert "d.mlpackage: is a pipeline of 2 models, not one ML Program; choose one of part1" in (
        capsys.readouterr().err
    )
