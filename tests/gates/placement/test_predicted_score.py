"""The score of predictions on labelled rows: which rows decide, and what is predicted of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.placement_maps import INSTALLED, maps, missing, predictions, rows
from benchmarks.placement_predicted import foreseen
from benchmarks.placement_score import main
from tests.packages import published

HEADER = "id,op_type,shapes,quant,chip,os,size_mb,instrument,label\n"


def row(op_type: str, shapes: str = "", chip: str = "M4", quant: str = "fp16") -> dict[str, str]:
    return {"id": "1", "op_type": op_type, "shapes": shapes, "chip": chip, "quant": quant}


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
    result = foreseen(row(op_type, shapes, chip), kind, "on")
    assert (result.predicted if result else None) == predicted
    assert foreseen(row(op_type, shapes, chip), kind, None) is None


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
