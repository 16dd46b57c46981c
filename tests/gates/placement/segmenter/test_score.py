"""The score on public plans: cases of S1 and plans of S2, both MIT (see README.md here)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.segmenter import main

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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, old: str, new: str, total: str
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
