"""`pytest-ane explain`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.tools.explain import wrapped
from tests.packages import save_conv
from tests.tools.conftest import AsJson


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
    assert lines[0] == "forecast: 1 of 1 op for the ANE"
    assert any(line.startswith("This is a forecast from documented rules") for line in lines)


def test_as_json_by_the_users_word(package: Path, as_json: AsJson) -> None:
    found = as_json("residency", str(package))
    assert (found["outcome"], found["compute"]) == ("eligible", {"conv": 1})
    assert found == as_json("explain", str(package))


def test_the_prediction_as_json(package: Path, as_json: AsJson) -> None:
    (prediction,) = as_json("explain", str(package), "--tokens", "4")["predictions"]
    units = [operation["unit"] for operation in prediction["operations"]]
    assert {"ANE", "CPU"} & {*units}
    assert [segment["last"] for segment in prediction["segments"]][-1] == len(units) - 1
    assert {"off", "undecided", "no_data", "margin", "tokens"} <= {*prediction}
    for group in prediction["off"]:
        assert [units[index] for index in group["operations"]] == ["CPU"] * len(group["operations"])


def test_units_and_chip_are_of_the_prediction(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = []
    for options in ([], ["--units", "ALL"], ["--chip", "m4 pro"], ["--chip", "M1"]):
        assert main(["explain", str(package), "--tokens", "1", *options]) == 0
        out = capsys.readouterr().out
        assert "resident" not in out
        heads += [line.partition(":")[0] for line in out.splitlines() if line[:9] == "predicted"]
    assert heads == [
        "predicted (M4, macOS 27, CPU_AND_NE, T = 1)",
        "predicted (M4 Pro, macOS 26.5.1, ALL, T = 1)",
        "predicted (M4 Pro, macOS 26.5.1, CPU_AND_NE, T = 1)",
        "predicted (M1, CPU_AND_NE, T = 1)",
    ]


def test_a_flexible_package_at_each_end_or_at_a_t(package: Path, as_json: AsJson) -> None:
    predictions = as_json("explain", str(package))["predictions"]
    assert sorted(prediction["tokens"] for prediction in predictions) == [1, 4]
    (prediction,) = as_json("explain", str(package), "--tokens", "2")["predictions"]
    assert prediction["tokens"] == 2
    (prediction,) = as_json("explain", str(package), "--tokens", "9")["predictions"]
    assert prediction["unknown"].startswith("T is 9, and input")
    assert prediction["total_ms"] is None


def test_lines_are_broken_for_a_terminal_and_whole_in_a_pipe(
    package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["explain", str(package)]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["explain", str(package)]) == 0
    broken = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 120
    assert max(map(len, broken.splitlines())) <= 60
    assert broken.split() == whole.split()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("R001 · ineligible · " + "word " * 8 + "end", ["R001", "    word"]),
        ("  fix: " + "word " * 10 + "end", ["  fix: word", "      word"]),
        ("  conv `" + "a" * 60 + "`: no", ["  conv", f"      `{'a' * 60}`:", "      no"]),
        ("short", ["short"]),
    ],
)
def test_what_is_continued_stands_under_its_beginning(line: str, shown: list[str]) -> None:
    lines = list(wrapped([line], 44))
    assert [one[: len(two)] for one, two in zip(lines, shown, strict=True)] == shown
    assert " ".join(lines).split() == line.split()


def test_weights_may_be_absent(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "conv.mlpackage"
    shutil.copytree(package, copy)
    shutil.rmtree(copy / "Data/com.apple.CoreML/weights")
    assert main(["explain", str(copy)]) == 0
    assert "compute ops: 1 conv" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.mlpackage"], "absent.mlpackage: not an .mlpackage (no such folder)."),
        (["{package}", "--os", "Windows 11"], "'Windows 11'"),
        (["{package}", "--chip", "M0"], "'M0' is no chip with an ANE; give M4 or M4 Pro, or"),
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
