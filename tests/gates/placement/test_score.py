"""The score of the rules on labelled rows, by a small table made up for it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from benchmarks.placement_predicted import foreseen
from benchmarks.placement_score import (
    COLUMNS,
    by_instrument,
    by_rule,
    listed,
    main,
    read,
    report,
    scored,
)

HEADER = "id,op_type,shapes,quant,chip,os,size_mb,instrument,label\n"
LABELS = """\
id,op_type,shapes,quant,os,size_mb,instrument,label,note
1,ios18.conv,,INT8 per-tensor,macOS 26.x,96,MLComputePlan,ANE,ignored
2,ios18.conv,,INT4 per-block,macOS 26.x,,MLComputePlan,NOT_ANE,
3,all,,fp16,macOS 26.x,2300,MLComputePlan,NOT_ANE,
4,all,,fp16,macOS 27.0,1300,MLComputePlan,NOT_ANE,
5,conv,1-2 layers,fp16,macOS 26,,MLComputePlan,CPU,
6,unsqueeze,rank 6,fp16,macOS 27,,convert-time validation,NOT_ANE,
7,lstm,small,fp16,macOS 26,,direct e5rt compile+run (NOT MLComputePlan),COMPILE_FAIL,
8,argsort,small,fp16,macOS 26,,direct e5rt compile+run (NOT MLComputePlan),ANE,
9,cumsum,,fp16,macOS 12,,private API swizzle,RUN_FAIL,
10,all,,fp16,macOS 26,,MLComputePlan,MIXED,
11,various small,,fp16,macOS 26,,MLComputePlan,NOT_ANE,
12,constexpr_lut_to_dense,,,macOS 26,,ANECCompile,COMPILES,
13,all,,fp16,macOS 26,364,"inferred from `du` > 250 MB, NOT from a plan",GPU (claimed),
"""


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(LABELS)))


def row(**given: str) -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "") | {"instrument": "MLComputePlan", "label": "ANE"} | given


def test_rows_are_scored_counted_by_instrument_and_rule_and_listed() -> None:
    results, left = scored(rows())
    assert [" ".join((one.row["id"], one.verdict, *one.rules)) for one in results] == [
        "1 right", "2 hit R064", "3 hit R076", "4 hit R076", "5 miss", "6 hit R027", "7 hit R001",
        "8 false alarm R009", "9 hit R011",
    ]  # fmt: skip
    assert by_instrument(results)[2:4] == [
        "| all | 9 | 0.86 (6/7) | 0.86 (6/7) | 1 | 1 |",
        "| all but direct compilation | 7 | 1.00 (5/5) | 0.83 (5/6) | 0 | 1 |",
    ]
    assert by_rule(results)[4] == "| R011 | 1.00 (1/1) | 0.17 (1/6) | - | 0.00 (0/1) |"
    assert list(listed(results, "miss")) == ["5 conv · 1-2 layers · fp16 · MLComputePlan: CPU"]
    assert "\nmiss, 1 rows:" in list(report(rows()))
    assert left == {
        "label MIXED does not place the whole row": 1,
        "op_type names no MIL op": 1,
        "a compile-time op, its compression is not told": 1,
        "label GPU (claimed) does not place the whole row": 1,
    }


@pytest.mark.parametrize(
    ("op_type", "shapes", "quant", "found"),
    [
        *(("ios18.conv", "", quant, ()) for quant in ("fp16", "INT8", "LUT6", "fp16/fp32 mix")),
        *(("ios18.conv", "", quant, ("R064",)) for quant in ("int4 per_block", "INT4 g32")),
        ("ios18.conv", "", "fp32", ("R021",)),
        ("ios18.conv", "", "LUT2 + blockwise scale", ("R069",)),
        ("constexpr_blockwise_shift_scale", "", "int4 per_block", ("R064",)),
        ("cast fp16->fp32", "", "", ()),
        ("cast fp16->int32", "", "", ("R022",)),
        ("conv/pad", "[N1 D1 C1 H1 W240000]", "", ("R030",)),
        ("scaled_dot_product_attention x22", "attn_mask produced on CPU", "", ("R049",)),
        ("gather (dynamic)", "[1,4,1,4]", "", ("R012",)),
        ("linear 5120->17408", "k=5120 n=17408 N=1", "", ()),
        ("unsqueeze", "rank 6", "", ("R027",)),
    ],
)
def test_the_rules_of_a_row(op_type: str, shapes: str, quant: str, found: tuple[str, ...]) -> None:
    told = {"op_type": op_type, "shapes": shapes, "quant": quant}
    results, left = scored([row(**told)])
    assert not left
    assert results[0].rules == found


def test_a_file_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(LABELS, encoding="utf-8")
    assert len(read(path)) == 13
    path.write_text("id,label\n1,ANE\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no column op_type, shapes"):
        read(path)
    with pytest.raises(SystemExit, match="cannot be read as CSV"):
        read(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    ("kind", "op_type", "shapes", "chip", "predicted"),
    [
        # Core ML's knee on an M4: 288 x 288 x 288 costs less than a launch, 1,024 x 1,024 more.
        ("matmul", "matmul", "256 square", "M4", "off"),
        ("matmul", "matmul", "1024x1024x1024", "M-series", "on"),
        ("linear", "linear 5120->17408", "k=5120 n=17408 N=1", "M-series", "on"),
        ("conv", "conv", "1x64x32x32 kernel=(3,3)", "M4", "off"),
        ("conv", "conv 3x3", "[1,64,128,128] 64->256", "M4 (Mac)", "on"),
        # Whatever the shape, and whatever the chip.
        ("argsort", "argsort", "", "M1", "off"),
        ("cast", "cast fp16->int32", "", "A19", "off"),
        ("expand_dims", "unsqueeze", "rank 6", "A17 Pro", "off"),
        ("pad", "conv/pad", "[N1 D1 C1 H1 W240000]", "A15", "off"),
        # No operation, no shapes or two, compressed, or of a chip whose costs nobody knows.
        (None, "all", "[1,64,8,8]", "M4", None),
        ("conv", "conv", "1-2 layers", "M4", None),
        ("conv", "conv 3x3", "[1,64,8,8]", "M5 Pro", None),
        ("conv", "conv 3x3", "[1,64,8,8] 128->256", "M4", None),
        # Undecided: 0.25 ms of launch and end against 0.26 ms on the CPU.
        ("matmul", "matmul", "464 square", "M4", None),
        # As large as what other plans have on the ANE, against the cost model.
        ("add", "add", "1x2048x1024", "M4", None),
    ],
)
def test_a_row_is_predicted_where_its_shapes_decide(
    kind: str | None, op_type: str, shapes: str, chip: str, predicted: str | None
) -> None:
    told = row(op_type=op_type, shapes=shapes, chip=chip, quant="fp16")
    result = foreseen(told, kind, "on")
    assert (result.predicted if result else None) == predicted
    assert foreseen(told, kind, None) is None


@pytest.mark.parametrize(("label", "code"), [("CPU", None), ("ANE", 1)])
def test_the_script_fails_below_a_bar(
    label: str, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "labels.csv"
    path.write_text(f"{HEADER}1,argsort,,fp16,M1,macOS 26,,MLComputePlan,{label}\n")
    monkeypatch.setattr("sys.argv", ["placement_score", "--labels", str(path)])
    if code is None:
        main()
    else:
        with pytest.raises(SystemExit, match="1"):
            main()
    assert "predicted off (argsort" in capsys.readouterr().out
