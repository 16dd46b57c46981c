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
    "row",
    [
        '1,M6,s,exp,"{""x"":""0x0000""}",1.0,,,',
        '1,M6,s,exp,"{""x"":[""0x0000"",""0x3c00""]}",,0x3c00 0x4170,,',
        '1,M6,s,exp,"{""first"":""0x0000"",""count"":2}",,0x3c00 0x3c00,,',
        '1,M6,s,inverse,"{""x"":""0x4000"",""epsilon"":0}",0.5,,,',
        '1,M6,s,inverse,"{""x"":""0x4000"",""epsilon"":1e-4}",0.5,,,',
        '1,M6,s,inverse,"{""x"":""0x4000"",""epsilon"":""0x068e""}",0.5,,,',
        '1,M6,s,gelu,"{""x"":""0x4900"",""mode"":""TANH_APPROXIMATION""}",10.0,,,',
        '1,M6,s,sub,"{""x"":[1,2],""y"":[3,3]}",,0xc000 0xbc00,,',
        '1,M6,s,maximum,"{""x"":1,""y"":3}",3.0,,,',
        '1,M6,s,linear,"{""w"":[""0x3c00*16384""],""x"":[""0x3c00*16384""]}",16384.0,,,',
        '1,M6,s,conv_palette,"{""w"":[""0x3c00*3"",""0x4000""],""x"":[1,2,3,4]}",14.0,,,',
    ],
)
def test_rows_of_other_forms(row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scored(tmp_path, HEADER + row + "\n") == 0
    assert last_line(capsys) == "1 of 1 scored rows reproduced, 0 not scored"


def test_of_several_outputs_the_first_wrong_one_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = '1,M6,s,exp,"{""first"":""0x0000"",""count"":3}",,0x3c00 0x3c01 0x3c01,,\n'
    assert scored(tmp_path, HEADER + row) == 1
    assert "exp 1 output 1, the first of 2: recorded 1.0009765625 (0x3c01), computed 1.0" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("row", "fit"),
    [
        ('reduce_sum,"{""x"":[""0x6800"",""0x3c00*2""]}",2052.0,', "fp16, one after the other"),
        ('reduce_sum,"{""x"":[""0x6800"",""0x3c00*3""]}",2052.0,', "fp16, a tree"),
        ('reduce_sum,"{""x"":[""0x7800"",""0x3c00*2""]}",inf,', "Q15.16"),
        ('real_div,"{""x"":""0x3c00"",""y"":""0x4200""}",,0x3555', "quotient, rounded once"),
        ('softmax,"{""x"":[""0x0000*2""]}",,0x3800 0x3800', "sum wide, rounded once, divided"),
        ('conv_int8,"{""codes"":[125],""scale"":""0x1c00"",""x"":[400]}",inf,', "after the sum"),
        ('linear_order,"{""w"":[1,1,1],""x"":[2e4,2e4,-2e4]}",inf,', "in order of the inputs"),
    ],
)
def test_candidates(row: str, fit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        scored(tmp_path, f"{HEADER}1,M6,s,{row},,\n1,M1,s,{row},,\n1,M6,s,softmax,{{,1,,,\n") == 1
    )
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("candidate: ") and f"{fit}: " in line]
    assert line.endswith("1 of 1 rows")


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
        ('1,M6,s,exp,"{""first"":""0xffff"",""count"":2}",,0x3c00 0x3c00,,', "cannot be read"),
        ('1,M6,s,exp,"{""x"":[0,0]}",1.0,,,', "cannot be read"),
        ('1,M6,s,exp,"{""x"":0,""file"":1}",1.0,,,', "cannot be read"),
        ('1,M6,s,conv,"{""w"":[""0x3c00*9999999999""],""x"":[1]}",1.0,,,', "cannot be read"),
        ('1,M6,s,gelu,"{""x"":0,""mode"":""SIGMOID_APPROXIMATION""}",0,,,', "has no rule for"),
        (ADD.replace(",,\n", ",,not counted as ANE evidence"), "the output may be the CPU's"),
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


@pytest.mark.parametrize(
    ("op", "operands", "output"),
    [
        ("conv", '{"w":["0X3C00"],"x":["0x7753"],"b":"0x0000"}', "30000.0,"),
        ("conv", '{"w":["0x3c00"],"x":["0x7800"],"b":"0x0000"}', "inf,"),
        ("conv", '{"w":["0x3c00"],"x":["0xFBFF"],"b":"0x0000"}', ",0xFC00"),
        ("conv", '{"w":["0x3c00"],"x":["0x6800"],"b":"0x3c00"}', ",6801"),
        ("conv_bias", '{"w":["0x3c00"],"x":["0x7400"],"bias":"0xf400"}', ",0x0000"),
        ("conv_lsb", '{"w":["0x0400"],"x":["0x3c00"],"b":"0x0000"}', ",0x0400"),
        ("conv", '{"w":"0x3c00","x":"0x3c00","K":576}', "576,"),
        ("linear", '{"w":["0x3c00*2049"],"x":["0x3c00*2049"],"b":0}', ",0x6801"),
        ("matmul", '{"x":["0x3c00*64"],"w":["0x6000*64"],"b":"0x0000"}', ",0x7c00"),
        ("matmul", '{"a":"0x3c00","y":"0x5c00","N":100}', "25600,"),
        ("conv_w8a8", '{"N":3,"kh":1,"k":0,"mode":"pos","q_x":-128,"q_w":127}', "-48768,"),
        ("conv_w8a8", '{"N":65536,"kh":16,"k":9,"mode":"neg","q_x":-128,"q_w":-128}', "inf,"),
        ("conv_w8a8", '{"N":131073,"kh":1,"k":9,"mode":"pos","q_x":-128,"q_w":127}', ",0xEFF0"),
        ("elementwise_add", '{"x":"0x7e00","y":"0xfe00"}', "0.0,"),
        ("elementwise_sub", '{"x":"0x7C01","y":"0x7c00"}', "32832,"),
        ("elementwise_mul", '{"x":"0x7fff","y":"0x3400"}', "32752,"),
    ],
)
def test_forms_of_rows(op: str, operands: str, output: str, tmp_path: Path) -> None:
    """Variants of the recorded forms: hex in either case, decimals, counts, special numbers."""
    quoted = operands.replace('"', '""')
    assert scored(tmp_path, f'{HEADER}1,M6 h18g,s,{op},"{quoted}",{output},,\n') == 0
