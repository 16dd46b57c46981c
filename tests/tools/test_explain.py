"""`pytest-ane explain`: packages, plans that were recorded, and weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.model import read_model
from pytest_ane.report.arithmetic import wrapped
from tests.gates.placement.plans.samples import COUNTS_TEXT, info
from tests.make.test_distortion import package as layers
from tests.packages import save_conv
from tests.tools.conftest import AsJson, Says


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "conv.mlpackage"
    save_conv(path)
    return path


def test_says_what_the_forecast_is_and_what_it_is_not(package: Path, says: Says) -> None:
    lines = says("explain", package)
    assert lines[0] == (
        "off the ANE (1 of 1 op, too little work, predicted: M4, macOS 27, T = 1) · "
        "1 of 1 op eligible by rules · "
        "conv_ane=0/1 conv_non_ane=1 · predicted: 0 of 1 compute ops on the ANE in 0 segments "
        "(M4, macOS 27, T = 1) · margin 0 ms"
    )
    assert any(line.startswith("This is a forecast from documented rules") for line in lines)


def test_as_json_by_the_users_word(package: Path, as_json: AsJson) -> None:
    found = as_json("residency", package)
    assert (found["outcome"], found["compute"]) == ("eligible", {"conv": 1})
    assert found == as_json("explain", package)


def test_the_prediction_as_json(package: Path, as_json: AsJson) -> None:
    (prediction,) = as_json("explain", package, "--tokens", "4")["predictions"]
    units = [operation["unit"] for operation in prediction["operations"]]
    assert {"ANE", "CPU"} & {*units}
    assert [segment["last"] for segment in prediction["segments"]][-1] == len(units) - 1
    assert {"off", "undecided", "no_data", "margin", "tokens"} <= {*prediction}
    for group in prediction["off"]:
        assert [units[index] for index in group["operations"]] == ["CPU"] * len(group["operations"])


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ([], "predicted (M4, macOS 27, CPU_AND_NE, T = 1)"),
        (["--units", "ALL"], "predicted (M4 Pro, macOS 26.5.1, ALL, T = 1)"),
        (["--chip", "m4 pro"], "predicted (M4 Pro, macOS 26.5.1, CPU_AND_NE, T = 1)"),
        (["--chip", "M1"], "predicted (M1, CPU_AND_NE, T = 1)"),
    ],
)
def test_units_and_chip_are_of_the_prediction(
    package: Path, says: Says, options: list[str], head: str
) -> None:
    lines = says("explain", package, "--tokens", "1", *options)
    assert [line.partition(":")[0] for line in lines if line[:9] == "predicted"] == [head]
    assert "resident" not in "\n".join(lines)


def test_a_flexible_package_at_each_end_or_at_a_t(package: Path, as_json: AsJson) -> None:
    predictions = as_json("explain", package)["predictions"]
    assert sorted(prediction["tokens"] for prediction in predictions) == [1, 4]
    (prediction,) = as_json("explain", package, "--tokens", "2")["predictions"]
    assert prediction["tokens"] == 2
    (prediction,) = as_json("explain", package, "--tokens", "9")["predictions"]
    assert prediction["unknown"].startswith("T is 9, and input")
    assert prediction["total_ms"] is None


def test_lines_are_broken_for_a_terminal_and_whole_in_a_pipe(
    package: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    whole = says("explain", package)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    broken = says("explain", package)
    assert max(map(len, whole)) > 120
    assert max(map(len, broken)) <= 60
    assert " ".join(broken).split() == " ".join(whole).split()


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


def test_weights_may_be_absent(package: Path, tmp_path: Path, says: Says) -> None:
    copy = tmp_path / "conv.mlpackage"
    shutil.copytree(package, copy)
    shutil.rmtree(copy / "Data/com.apple.CoreML/weights")
    assert "compute ops: 1 conv" in says("explain", copy)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (COUNTS_TEXT, ["conv_ane=4/4 conv_non_ane=0 · compute 148/148 ANE · GPU 0 · CPU 0",
                       "resident (plan, counts)"]),
        ("conv_total=4 conv_ane=4 conv_non_ane=0\n",
         ["conv_ane=4/4 conv_non_ane=0 · other ops not recorded"]),
    ],
)  # fmt: skip
def test_a_recorded_plan_is_counted(
    tmp_path: Path, says: Says, text: str, lines: list[str]
) -> None:
    (file := tmp_path / "plan.txt").write_text(text)
    assert says("explain", file)[: len(lines)] == lines


def test_types_of_a_plan_come_from_the_package(package: Path, tmp_path: Path, says: Says) -> None:
    name = next(one.name for one in read_model(package).program.walk() if one.op == "conv")
    (file := tmp_path / "plan.json").write_text(json.dumps({"infos": [info(name)]}))
    assert any("inconclusive (plan, coremltools)" in line for line in says("explain", file))
    first, *others = says("explain", file, "--package", package)
    assert first.startswith("conv_ane=1/1 conv_non_ane=0 · compute 1/1 ANE · GPU 0 · CPU 0 · ")
    assert "resident (plan, coremltools)" in others


def test_a_plan_as_json(tmp_path: Path, as_json: AsJson) -> None:
    (file := tmp_path / "plan.txt").write_text(COUNTS_TEXT)
    found = as_json("explain", file)
    assert (found["outcome"], found["source"]) == ("resident", "counts")
    assert found["devices"] == {"ANE": 148}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`entry/model.mlpackage` and `other/model.mlpackage`."""
    layers(tmp_path / "entry", ("u", [[3.0, 4.0]]), ("v", np.ones((1, 3000))))
    layers(tmp_path / "other", ("u", [[3.0, 5.0]]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


OWN = "entry/model.mlpackage"
AGAINST = ("--against", "other/model.mlpackage")


def test_weights_that_are_stored(folder: Path, says: Says) -> None:
    head, u, v, total = says("explain", "--weights", OWN)
    assert head.split() == ["weight", "shape", "stored", "as", "bits", "groups", "bytes"]
    assert [line.split() for line in (u, v)] == [
        ["u", "1x2", "const", "16", "0", "4"],
        ["v", "1x3000", "const", "16", "0", "6,000"],
    ]
    assert total == "2 weights, 6,004 bytes, 1.00x smaller than fp16"
    assert says("explain", "--weights", AGAINST[1])[-1].startswith("1 weight, 4 bytes, ")


def test_weights_against_another_package(folder: Path, says: Says, as_json: AsJson) -> None:
    head, u, _, _, missing = says("explain", "--weights", OWN, *AGAINST)
    assert head.endswith("  SSE  SNR dB")
    assert float(u.split()[-2]) == 1
    assert missing.startswith("1 of them have no counterpart of the same name and shape in other/")
    found = as_json("explain", "--weights", OWN, *AGAINST)
    u, v = found["weights"]
    assert (u["name"], u["shape"], u["storage"], u["sse"]) == ("u", [1, 2], "const", 1)
    assert "sse" not in v
    assert found["bytes"] == 6004


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.mlpackage"], "absent.mlpackage: not an .mlpackage (no such folder)."),
        (["{package}", "--os", "Windows 11"], "'Windows 11'"),
        (["{package}", "--chip", "M0"], "'M0' is no chip with an ANE; give M4 or M4 Pro, or"),
        (["{package}", "--package", "x"], "--package is for a recorded plan, and"),
        (["{package}", *AGAINST], "--against is for the errors of weights; give --weights too."),
        (["bad.json"], "bad.json: infos[0].path is absent, not an object; record the plan again."),
        (["--weights", OWN, "--against", "no.mlpackage"], "no.mlpackage: not an .mlpackage (no "),
    ],
)
def test_bad_input_is_one_sentence(
    package: Path, folder: Path, arguments: list[str], words: str, says: Says
) -> None:
    (folder / "bad.json").write_text('{"infos": [{}]}')
    (line,) = says("explain", *(argument.format(package=package) for argument in arguments), code=1)
    assert line.startswith("pytest-ane: ")
    assert words in line
