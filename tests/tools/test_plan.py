"""`pytest-ane plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.mlprogram.model import read_model
from tests.gates.placement.plans.samples import COUNTS_TEXT, info
from tests.packages import save_conv
from tests.tools.conftest import AsJson


def test_prints_the_line_and_what_is_not_on_the_ane(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.txt"
    file.write_text(COUNTS_TEXT)
    assert main(["explain", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "conv_ane=4/4 conv_non_ane=0 · compute 148/148 ANE · GPU 0 · CPU 0",
        "resident (plan, counts)",
    ]


def test_a_file_of_convolutions_alone_counts_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "plan.txt").write_text("conv_total=4 conv_ane=4 conv_non_ane=0\n")
    assert main(["explain", str(file)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "conv_ane=4/4 conv_non_ane=0 · other ops not recorded"


def test_types_come_from_the_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "conv.mlpackage"
    save_conv(package)
    name = next(one.name for one in read_model(package).program.walk() if one.op == "conv")
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"infos": [info(name)]}))
    assert main(["explain", str(file)]) == 0
    assert "inconclusive (plan, coremltools)" in capsys.readouterr().out
    assert main(["explain", str(file), "--package", str(package)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("conv_ane=1/1 conv_non_ane=0 · compute 1/1 ANE · GPU 0 · CPU 0 · ")
    assert "resident (plan, coremltools)" in out.splitlines()


def test_as_json(tmp_path: Path, as_json: AsJson) -> None:
    (file := tmp_path / "plan.txt").write_text(COUNTS_TEXT)
    found = as_json("explain", str(file))
    assert (found["outcome"], found["source"]) == ("resident", "counts")
    assert found["devices"] == {"ANE": 148}


def test_a_bad_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"infos": [{}]}')
    assert main(["explain", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.endswith(
        "plan.json: infos[0].path is absent, not an object; record the plan again."
    )
