"""Recorded outputs are reproduced bit for bit, and a file of rows is scored without crashing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ane_arithmetic import main

HEADER = "id,chip,source,op,operands,ane,ane_fp16,cpu,note\n"
ADD = '1,M6,s,elementwise_add,"{""x"":""0x6800"",""y"":""0x3c00""}",2050.0,0x6801,,\n'


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def scored(folder: Path, text: str) -> int:
    file = folder / "rows.csv"
    file.write_text(text)
    return main(["--rows", str(file)])


def test_every_recorded_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert last_line(capsys) == "421 of 421 scored rows reproduced, 29 not scored"


def test_a_mismatch_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scored(tmp_path, HEADER + ADD + ADD.replace("0x6801", "0x6800")) == 1
    output = capsys.readouterr().out
    assert "not reproduced: elementwise_add 1: recorded 2048.0 (0x6800), computed 2050.0" in output
    assert output.splitlines()[-1] == "1 of 2 scored rows reproduced, 0 not scored"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,M6,s,softmax,{},1.0,0x3c00,,", "operation 'softmax' has no rule"),
        (ADD.replace("M6", "M1").strip(), "M1 is of another generation"),
        ("1,M6,s,conv,{,1.0,,,", "cannot be read"),
        ('1,M6,s,conv,"{""w"":[1e9],""x"":[1]}",1.0,,,', "cannot be read"),
        ('1,M6,s,conv,"{""w"":[1,2],""x"":[1]}",1.0,,,', "cannot be read"),
        ('1,M6,s,conv,"[1]",1.0,,,', "cannot be read"),
        ('1,M6,s,conv,"' + "[" * 10000 + '",1.0,,,', "cannot be read"),
        ('1,M6,s,conv,"{""w"":[1],""x"":[1]}",,,,', "cannot be read"),
        ('1,M6,s,conv,"{""w"":1,""x"":1,""n"":1e12}",1.0,,,', "cannot be read"),
        ("1", "operation '' has no rule"),
    ],
)
def test_rows_that_are_not_scored(
    row: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scored(tmp_path, HEADER + ADD + row + "\n") == 0
    output = capsys.readouterr().out
    assert reason in output
    assert output.splitlines()[-1] == "1 of 1 scored rows reproduced, 1 not scored"


def test_nothing_scored_is_no_success(tmp_path: Path) -> None:
    assert scored(tmp_path, HEADER) == 1


def test_files_that_are_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", str(tmp_path / "none.csv")]) == 2
    assert scored(tmp_path, "a,b\n1,2\n") == 2
    assert "lacks columns" in capsys.readouterr().err
