"""The score of predictions on labelled rows: which rows decide, and what is predicted of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.placement_maps import INSTALLED, maps, missing, predictions, rows
from benchmarks.placement_predicted import Foreseen, described, foreseen, passes, table
from benchmarks.placement_score import main
from pytest_ane.gates.placement.segmenter import Tensor
from tests.packages import published

HEADER = "id,op_type,shapes,quant,chip,os,size_mb,instrument,label\n"


def row(op_type: str, shapes: str = "", chip: str = "M4", quant: str = "fp16") -> dict[str, str]:
    return {"id": "1", "op_type": op_type, "shapes": shapes, "chip": chip, "quant": quant}


@pytest.mark.parametrize(
    ("kind", "op_type", "shapes", "chip", "predicted"),
    [
        # Core ML's knee on an M4: 288 x 288 x 288 costs less than a launch, 1,024 x 1,024 more.
        ("matmul", "matmul", "256 square", "M4", "off"),
        ("matmul", "matmul", "1024 square", "M4", "on"),
        ("matmul", "matmul", "1024x1024x1024", "M-series", "on"),
        ("linear", "linear 5120->17408", "k=5120 n=17408 N=1", "M-series", "on"),
        ("linear", "linear", "k=64 n=64 N=1", "M4 24 GB", "off"),
        ("conv", "conv 3x3", "[1,256,32,32]", "M4 Pro", "on"),
        ("conv", "conv", "1x64x32x32 kernel=(3,3)", "M4", "off"),
        ("conv", "conv 3x3", "[1,64,128,128] 64->256", "M4 (Mac)", "on"),
        ("relu", "relu", "[1,64,8,8]", "M4", "off"),
        ("relu", "relu", "1x64x32x32", "M4", "off"),
        # Whatever the shape, and whatever the chip.
        ("argsort", "argsort", "", "M1", "off"),
        ("cast", "cast fp16->int32", "", "A19", "off"),
        ("gather", "gather", "", "M2", "off"),
        ("expand_dims", "unsqueeze", "rank 6", "A17 Pro", "off"),
        ("pad", "conv/pad", "[N1 D1 C1 H1 W240000]", "A15", "off"),
    ],
)
def test_a_row_whose_shapes_decide(
    kind: str, op_type: str, shapes: str, chip: str, predicted: str
) -> None:
    result = foreseen(row(op_type, shapes, chip), kind, "on")
    assert result
    assert result.predicted == predicted


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (None, row("all", "[1,64,8,8]")),
        ("conv", row("conv", "1-2 layers")),
        ("conv", row("conv 3x3", "[1,64,8,8]", quant="INT8 per-tensor")),
        ("conv", row("conv 3x3", "[1,64,8,8]", chip="M5 Pro")),
        ("conv", row("conv 3x3", "[1,64,8,8] 128->256")),
        ("conv", row("conv", "[1,64,8,8]")),
        ("conv", row("conv depthwise", "groups=hidden=1024 kernel=(1,3)")),
        ("linear", row("linear", "k=64 n=64")),
        ("floor", row("floor")),
        ("relu", row("relu", "512x384")),
        # Undecided: 0.25 ms of launch and end against 0.26 ms on the CPU.
        ("matmul", row("matmul", "464 square")),
        # As large as what other plans have on the ANE, against the cost model.
        ("add", row("add", "1x2048x1024")),
        ("transpose", row("transpose", "1x512x512")),
        ("scaled_dot_product_attention", row("sdpa", "1x16x1024x64")),
    ],
)
def test_a_row_whose_shapes_do_not_decide(kind: str | None, given: dict[str, str]) -> None:
    assert foreseen(given, kind, "on") is None


def test_what_was_not_measured_of_the_whole_row_is_left_out() -> None:
    assert foreseen(row("argsort"), "argsort", None) is None


def test_a_description_gives_the_operation() -> None:
    conv = described("conv", "conv 1x1", "[1,64,8,8] 64->128")
    assert conv
    assert (conv.inputs, conv.outputs) == ((Tensor((1, 64, 8, 8)),), (Tensor((1, 128, 8, 8)),))
    assert conv.weight == Tensor((128, 64, 1, 1), constant=True)
    depthwise = described("conv", "conv depthwise", "[1,64,8,8] kernel=(1,3)")
    assert depthwise
    assert depthwise.weight == Tensor((64, 1, 1, 3), constant=True)
    assert depthwise.attributes == {"groups": (64,)}
    product = described("matmul", "matmul", "M=8 k=64 n=32")
    assert product
    assert [t.shape for t in (*product.inputs, *product.outputs)] == [(8, 64), (64, 32), (8, 32)]


def results(*units: str) -> list[Foreseen]:
    """`on-off` was predicted on, and measured off."""
    pairs = [unit.split("-") for unit in units]
    return [Foreseen(row("relu"), t, p, "") for p, t in pairs]


@pytest.mark.parametrize(
    ("units", "right"),
    [
        ((), True),
        (("on-on",), True),
        (("off-off",), True),
        (("off-on",), False),
        (("on-off",), False),
        (("off-off", "off-off", "off-off", "off-off", "off-on"), True),
        (("off-off", "off-off", "off-off", "off-on"), False),
        (("off-off", "off-off", "on-off"), False),
    ],
)
def test_the_bars(units: tuple[str, ...], right: bool) -> None:
    assert passes(results(*units)) is right


def test_the_table_counts_and_lists() -> None:
    lines = list(table(results("off-off", "off-on", "on-off")))
    assert lines[2] == "| 3 | 0.50 (1/2) | 0.50 (1/2) |"
    assert len(lines) == 6


@pytest.mark.parametrize(("label", "code"), [("CPU", None), ("ANE", 1)])
def test_the_script_fails_below_a_bar(
    label: str,
    code: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f"{HEADER}1,argsort,,fp16,M1,macOS 26,,MLComputePlan,{label}\n")
    monkeypatch.setattr("sys.argv", ["placement_score", "--labels", str(path)])
    if code is None:
        main()
    else:
        with pytest.raises(SystemExit, match="1"):
            main()
    assert "predicted off (argsort" in capsys.readouterr().out


@pytest.mark.drawn
@pytest.mark.parametrize("name", [pytest.param("full", marks=pytest.mark.slow), "tiny"])
def test_the_maps_of_crepe_are_those_of_the_page(name: str) -> None:
    pairs = predictions(published(INSTALLED, name))
    assert missing([*rows(f"{INSTALLED} {name}", pairs), *maps(pairs, set())]) == []


def test_maps_are_shown_once_and_a_line_that_the_page_lacks_is_named() -> None:
    pairs = predictions(published(INSTALLED, "tiny"))
    shown: set[tuple[object, ...]] = set()
    assert list(maps(pairs, shown))
    assert list(maps(pairs, shown)) == []
    assert missing(["", "| none | 1 |"]) == ["| none | 1 |"]
