"""`pytest-ane record-arithmetic`, on a Mac that is not there."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ane_arithmetic import main as score
from benchmarks.ane_arithmetic import read
from pytest_ane.backends.coreml.process import Device
from pytest_ane.cli import main
from pytest_ane.experiments import COLUMNS
from pytest_ane.testing import INTEL, DeviceRule, Failure, Mac, Replayer, Script
from tests.tools.conftest import AsJson

QUICK = ("real_div", "conv_palette")


@contextmanager
def mac(chip: str = "Apple M4 Max", **script: Any) -> Iterator[None]:
    with Replayer(Script(Mac(chip, compiler=""), **script)):
        yield


def record(file: Path, *experiments: str) -> int:
    return main(["record-arithmetic", *(experiments or QUICK), "--out", str(file)])


@pytest.fixture(autouse=True)
def in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No child for Core ML, which takes a second to start, except where one is meant."""
    if "genuine" not in request.fixturenames:
        monkeypatch.setattr("pytest_ane.backends.coreml.process.Device", lambda: Device(None))


@pytest.fixture
def genuine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayed module counts as Core ML's own."""
    monkeypatch.setattr("pytest_ane.experiments.recorder.is_replaced", lambda: False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def test_a_machine_without_an_ane_records_nothing(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Replayer(Script(INTEL)):
        assert record(file) != 0
    assert "this is a Mac for which Core ML lists no Neural Engine" in capsys.readouterr().err
    assert not file.exists()


def test_rows_of_a_replayed_mac_are_no_evidence(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mac():
        assert record(file) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "Apple M4 Max, macOS 26.1 (25B78), 2 experiments"
    assert out[1].startswith("real_div: 200 rows, the native module is replaced by pytest-ane")
    assert out[-1] == f"{file}: 664 rows of 2 experiments"
    assert score(["--rows", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "0 of 0 scored rows reproduced, 664 not scored"
    )


@pytest.mark.usefixtures("genuine")
@pytest.mark.slow
def test_outputs_that_equal_the_cpu_s_are_no_evidence(file: Path) -> None:
    with mac():
        assert record(file, "real_div") == 0
    (note,) = {row["note"] for row in read(file)}
    assert note.startswith("every output of the program equals the CPU's")


@pytest.mark.usefixtures("genuine")
@pytest.mark.slow
def test_rows_are_scored_as_they_come(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_ane.experiments.recorder._same", lambda *outputs: False)
    with mac():
        assert record(file) == 0
    text = file.read_text()
    assert text.startswith("# Outputs of the ANE, recorded by pytest-ane ")
    assert "on Apple M4 Max, macOS 26.1 (25B78), coremltools " in text.splitlines()[0]
    first, *_ = rows = list(csv.DictReader(text.splitlines()[1:]))
    assert tuple(first) == COLUMNS
    assert first["id"] == "real_div/0"
    assert (first["operands"], first["ane_fp16"]) == ('{"x":"0x3c00","y":"0x4200"}', "0x3555")
    assert first["ane"] == first["cpu"] == "0.333251953125"
    assert {row["note"] for row in rows} == {""}
    capsys.readouterr()
    assert score(["--rows", str(file)]) == 1, "the executor is not the ANE"
    out = capsys.readouterr().out.splitlines()
    assert "candidate: real_div, quotient, rounded once: 197 of 200 rows" in out
    assert out[-1] == "326 of 464 scored rows reproduced, 200 not scored"


def test_an_operation_elsewhere_is_left_out_and_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mac(devices=(DeviceRule("CPU", op="real_div"),)):
        assert record(file) == 0
    reason = "the plan places real_div on CPU, not on the ANE."
    assert f"real_div: left out, {reason}" in capsys.readouterr().out.splitlines()
    assert f"# Left out: real_div: {reason}" in file.read_text().splitlines()
    assert {row["op"] for row in read(file)} == {"conv_palette"}


def test_a_failure_of_core_ml_leaves_out_one_experiment(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mac(failures=(Failure("predict", "{path}: Program Inference overflow"),)):
        assert record(file) == 0
    assert "real_div: left out, " in (out := capsys.readouterr().out)
    assert "Program Inference overflow" in out
    assert "464 rows of 1 experiments" in out
    assert "/pytest-ane-" not in file.read_text(), "no folder of the user's"


def test_nothing_on_the_ane(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mac(devices=(DeviceRule("CPU"),)):
        assert record(file) == 1
    assert capsys.readouterr().err.splitlines() == [
        "pytest-ane: No experiment ran on the ANE of this Mac "
        "(Apple M4 Max, macOS 26.1 (25B78)); see above."
    ]


@pytest.mark.usefixtures("genuine")
@pytest.mark.slow
def test_an_older_generation_is_named_and_not_scored(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mac("Apple M2 Pro"):
        assert record(file, "conv_palette") == 0
    assert "M2 is of an older generation than the rules are for" in capsys.readouterr().out
    score(["--rows", str(file)])
    assert "M2 is of another generation than h16+" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has Core ML")
def test_without_a_mac_it_is_one_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record(file) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "pytest-ane: record-arithmetic records what the Neural Engine of a Mac computes, and there "
        "is no Core ML here; run it on a Mac with an M4 or a later chip.\n"
    )
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "There is no experiment 'nothing'; there are reduce_sum_channels, "),
        (["--out", "there.csv"], "--out there.csv: exists; name another file, or delete it."),
        (["--out", "no/rows.csv"], "--out no/rows.csv: cannot be written (No such file"),
    ],
)
def test_bad_arguments(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.csv").touch()
    with mac():
        assert main(["record-arithmetic", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pytest-ane: {sentence}")
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]


def test_as_json(as_json: AsJson, file: Path) -> None:
    with mac(devices=(DeviceRule("CPU", op="real_div"),)):
        data = as_json("record-arithmetic", *QUICK, "--out", str(file))
    assert (data["file"], data["rows"]) == (str(file), 464)
    assert (data["chip"], list(data["left_out"])) == ("M4 Max macOS 26.1 (25B78)", ["real_div"])
