"""`pytest-ane explain`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_ane.cli import main
from tests.packages import save_conv


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "conv.mlpackage"
    save_conv(path)
    return path


def test_says_what_the_forecast_is_and_what_it_is_not(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(package)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("eligible, needs device evidence · conv 1/1 · compute 1 op")
    assert any(line.startswith("This is a forecast from documented rules") for line in lines)


def test_weights_may_be_absent(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "conv.mlpackage"
    shutil.copytree(package, copy)
    shutil.rmtree(copy / "Data/com.apple.CoreML/weights")
    assert main(["explain", str(copy)]) == 0
    assert capsys.readouterr().out.startswith("eligible, needs device evidence")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.mlpackage"], "absent.mlpackage: not an .mlpackage (no such folder)."),
        (["{package}", "--os", "Windows 11"], "'Windows 11'"),
    ],
)
def test_bad_input_is_one_sentence(
    package: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.format(package=package) for argument in arguments]
    assert main(["explain", *filled]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("pytest-ane: ")
    assert words in line
