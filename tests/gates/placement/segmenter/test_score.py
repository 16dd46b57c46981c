"""The score on public plans: cases of S1 and plans of S2, both MIT (see README.md here)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.segmenter import main
from benchmarks.segmenter_rows import case_op, plan_ops
from pytest_ane.gates.placement.segmenter import Tensor

FOLDER = Path(__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(path: Path, table: list[dict[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*table[0]])
        writer.writeheader()
        writer.writerows(table)
    return str(path)


def test_public_plans_are_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "total: paths 100.0%, wrong support verdicts 0, costs 99.6%; plans CPU_AND_NE 100.0%, "
        "ALL strict 100.0%, ALL with ties 100.0%: passed"
    )


@pytest.mark.parametrize(
    ("column", "old", "new", "total"),
    [
        ("preferred", "ANE", "CPU", "paths as predicted"),
        ("supported", "CPU,ANE", "CPU", "support verdicts"),
        ("ms_ane", "0.00262144", "0.0028", "costs within 5 %"),
    ],
)
def test_a_wrong_answer_fails(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    old: str,
    new: str,
    total: str,
) -> None:
    table = [
        {**row, column: new} if row[column] == old else row
        for row in rows("cases.csv")
        if row["case"] == "abs"
    ]
    assert main(["--cases", written(tmp_path / "c.csv", table), "--verbose"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("failed")
    at = next(i for i, line in enumerate(lines) if line.startswith(total))
    assert "abs" in lines[at + 1]


def test_a_wrong_plan_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = [{**row, "device": "CPU"} for row in rows("plans.csv")]
    assert main(["--plans", written(tmp_path / "p.csv", table)]) == 1
    assert "ALL with ties 2.6%: failed" in capsys.readouterr().out.splitlines()[-1]


def test_a_machine_without_costs_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [{**row, "machine": "m5-max"} for row in rows("plans.csv")[:3]]
    assert main(["--plans", written(tmp_path / "p.csv", table)]) == 1
    output = capsys.readouterr().out
    assert "no costs of m5-max with CPU_AND_NE; left out" in output
    assert output.endswith("plans none: failed\n")


def test_a_missing_column_is_told(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("case,op\nabs,abs\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no column set, units"):
        main(["--cases", str(path)])
    with pytest.raises(SystemExit, match="cannot be read"):
        main(["--cases", str(tmp_path / "none.csv")])


def test_a_case_is_made_of_its_columns() -> None:
    (row,) = (row for row in rows("cases.csv") if row["case"] == "conv3x3_d2" and
              row["set"] == "iso" and row["units"] == "cpune")  # fmt: skip
    conv = case_op(row)
    assert conv.weight == Tensor((64, 64, 3, 3))
    assert conv.attributes["dilations"] == (2, 2)


def test_a_plan_s_inputs_are_those_of_its_notes() -> None:
    table = [row for row in rows("plans.csv") if row["model"] == "resnet50-b16"][:7]
    ops = plan_ops(table)
    assert ops[1].inputs == (Tensor((16, 3, 224, 224)),)
    assert ops[1].weight == Tensor((64, 3, 7, 7))
    assert ops[3].attributes["kernel_sizes"] == (3, 3)
    assert ops[3].inputs == (Tensor((16, 64, 112, 112)),)
