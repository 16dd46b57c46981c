"""The score of the rules on labelled rows, by a small table made up for it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from benchmarks.placement_score import (
    COLUMNS,
    DIRECT,
    by_instrument,
    by_rule,
    extents,
    family,
    listed,
    op_of,
    passes,
    ratio,
    read,
    report,
    scored,
    system,
    truth,
)

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


def rules(**given: str) -> tuple[str, ...]:
    """The rules that say `ineligible` of a row."""
    results, left = scored([row(**given)])
    assert not left
    return results[0].rules


def test_rows_are_scored_counted_by_instrument_and_rule_and_listed() -> None:
    results, _ = scored(rows())
    assert [(one.row["id"], one.verdict, *one.rules) for one in results] == [
        ("1", "right"),
        ("2", "hit", "R064"),
        ("3", "hit", "R076"),
        ("4", "hit", "R076"),
        ("5", "miss"),
        ("6", "hit", "R027"),
        ("7", "hit", "R001"),
        ("8", "false alarm", "R009"),
        ("9", "hit", "R011"),
    ]
    results, _ = scored(rows())
    lines = by_instrument(results)
    assert lines[2] == "| all | 9 | 0.86 (6/7) | 0.86 (6/7) | 1 | 1 |"
    assert lines[3] == "| all but direct compilation | 7 | 1.00 (5/5) | 0.83 (5/6) | 0 | 1 |"
    assert lines[4] == "| MLComputePlan | 5 | 1.00 (3/3) | 0.75 (3/4) | 0 | 1 |"
    assert lines[-1] == "| direct compilation | 2 | 0.50 (1/2) | 1.00 (1/1) | 1 | 0 |"
    results, _ = scored(rows())
    assert by_rule(results)[2:] == [
        "| R001 | - | 0.00 (0/6) | 1.00 (1/1) | 1.00 (1/1) |",
        "| R009 | - | 0.00 (0/6) | 0.00 (0/1) | 0.00 (0/1) |",
        "| R011 | 1.00 (1/1) | 0.17 (1/6) | - | 0.00 (0/1) |",
        "| R027 | 1.00 (1/1) | 0.17 (1/6) | - | 0.00 (0/1) |",
        "| R064 | 1.00 (1/1) | 0.17 (1/6) | - | 0.00 (0/1) |",
        "| R076 | 1.00 (2/2) | 0.33 (2/6) | - | 0.00 (0/1) |",
    ]
    results, _ = scored(rows())
    assert list(listed(results, "miss")) == [
        "5 conv · 1-2 layers · fp16 · MLComputePlan: CPU",
    ]
    assert "\nmiss, 1 rows:" in list(report(rows()))
    _, left = scored(rows())
    assert left == {
        "label MIXED does not place the whole row": 1,
        "op_type names no MIL op": 1,
        "a compile-time op, its compression is not told": 1,
        "label GPU (claimed) does not place the whole row": 1,
    }


@pytest.mark.parametrize(
    ("quant", "found"),
    [
        ("", ()),
        ("fp16", ()),
        ("INT8", ()),
        ("INT8 per-channel", ()),
        ("LUT6", ()),
        ("constexpr_lut_to_dense 4-bit per_grouped_channel g32", ()),
        ("W4 LUT", ()),
        ("fp32", ("R021",)),
        ("fp16/fp32 mix", ()),
        ("mixed fp32 and INT4 per-block", ("R064",)),
        ("INT4 per-block", ("R064",)),
        ("int4 per_block", ("R064",)),
        ("INT4 g32", ("R064",)),
        ("LUT2 + blockwise scale", ("R069",)),
    ],
)
def test_the_compression_of_a_row(quant: str, found: tuple[str, ...]) -> None:
    assert rules(op_type="ios18.conv", quant=quant) == found


@pytest.mark.parametrize(
    ("op_type", "shapes", "found"),
    [
        ("cast fp16->fp32", "", ()),
        ("cast fp16->int32", "", ("R022",)),
        ("cast fp16->uint8", "", ()),
        ("conv/pad", "[N1 D1 C1 H1 W240000]", ("R030",)),
        ("ios18.scaled_dot_product_attention x22", "attn_mask produced on CPU", ("R049",)),
        ("scaled_dot_product_attention", "small fixed probe shape", ()),
        ("gather (dynamic)", "[1,4,1,4]", ("R012",)),
        ("linear 5120->17408", "k=5120 n=17408 N=1", ()),
        ("read_state/write_state", "w=256", ()),
        ("all", "RangeDim T=1..4", ()),
        ("unsqueeze", "rank 6", ("R027",)),
    ],
)
def test_the_op_and_shapes_of_a_row(op_type: str, shapes: str, found: tuple[str, ...]) -> None:
    assert rules(op_type=op_type, shapes=shapes) == found


def test_programs_and_states_are_asked_about_where_they_are_used() -> None:
    assert rules(op_type="constexpr_blockwise_shift_scale", quant="int4 per_block") == ("R064",)
    told = {"op_type": "read_state/write_state", "label": "RUN_FAIL"}
    results, _ = scored([row(shapes=f"w={width}", **told) for width in (256, 270)])
    assert [one.warned for one in results] == [(), ("R058",)]
    (one,), _ = scored([row(op_type="all", shapes="EnumeratedShapes", label="NOT_ANE")])
    assert (one.verdict, one.warned) == ("miss", ("R055",))


@pytest.mark.parametrize(
    ("label", "measured"),
    [
        ("ANE", "on"),
        ("ANE (value unchecked)", "on"),
        ("COMPILES", "on"),
        ("CPU", "off"),
        ("COMPILE_FAIL(-14)", "off"),
        ("ANE but WRONG", "off"),
        ("MIXED", None),
        ("RUNS", None),
        ("GPU (claimed)", None),
    ],
)
def test_what_a_label_says(label: str, measured: str | None) -> None:
    assert truth(row(label=label)) == measured


def test_the_words_of_a_row() -> None:
    assert family("ANECCompile") == DIRECT
    assert [op_of(text) for text in ("all dispatched ops", "ios18.topk", "ct.StateType")] == [
        *("conv", "topk", "conv")
    ]
    assert op_of("") is None
    assert extents("1x3x5568x5568") == (1, 3, 5568, 5568)
    assert extents("k <= 16384") == (1, 16_384)
    assert (system("macOS 26.5.1/26.6"), system("iOS 17/18"), system("")) == (
        *("macOS 26", "iOS 17", "macOS 26"),
    )
    assert (ratio(0, 0), ratio(1, 3)) == ("-", "0.33 (1/3)")


@pytest.mark.parametrize(
    ("right", "alarms", "misses", "reaches"),
    [(19, 1, 0, True), (19, 2, 0, False), (1, 0, 2, True), (1, 0, 3, False), (0, 0, 1, False)],
)
def test_the_bars(right: int, alarms: int, misses: int, reaches: bool) -> None:
    hit = row(op_type="lstm", label="CPU")
    kept = [hit] * right + [hit | {"label": "ANE"}] * alarms
    assert passes([*kept, *[hit | {"op_type": "conv"}] * misses]) is reaches


def test_a_file_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(LABELS, encoding="utf-8")
    assert len(read(path)) == 13
    path.write_text("id,label\n1,ANE\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no column op_type, shapes"):
        read(path)
    with pytest.raises(SystemExit, match="cannot be read as CSV"):
        read(tmp_path / "absent.csv")
