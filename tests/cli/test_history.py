"""`pytest-ane history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ane.cli import main
from tests.history.records import line, write

MAC = {"backend": "coreml", "chip": "Apple M4", "os": "macOS 26.1 (25B78)"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine runs, of which the sixth spoils L11, one of them on a Mac; and half a line."""
    runs = range(9)
    cosines = {i: 0.42 if i >= 5 else 0.9991 for i in runs}
    spoilt = {i: {"artifact": "b" * 64} if i >= 5 else {} for i in runs}
    write(
        tmp_path,
        *(line(i, {"cosine.min": 0.9995}, subject="mini:L01") for i in runs),
        *(line(i, {"cosine.min": cosines[i]}, subject="mini:L11", **spoilt[i]) for i in runs),
        line(8, {"cosine.min": 0.9992}, subject="mini:L01", **MAC),
    )
    with (tmp_path / "mini.jsonl").open("a") as file:
        file.write('{"format":1,"run"')
    return tmp_path


def ask(folder: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["history", "--history", str(folder), *words]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_the_overview_names_the_commit_and_the_shard(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note, heads, row, _, _, _, step = ask(folder, capsys).splitlines()
    assert note == "note: 1 line skipped: mini.jsonl:20 is damaged"
    assert heads.split() == ["model", "lines", "runs", "commits", "first", "last", "machines"]
    assert row.split()[:6] == ["mini", "19", "9", "9", "2026-01-01", "2026-01-09"]
    assert step.split()[:3] == ["000000000", "mini:L11", "fidelity"]
    assert "0.9991 -> 0.42" in step
    assert step.endswith("another package")


def test_a_figure_over_commits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ask(folder, capsys, "cosine.min", "--shards", "L11", "--gate", "fidelity")
    title, heads, *rows = output.splitlines()[1:]
    assert title == "mini:L11 fidelity cosine.min on cpu:"
    assert "0.42 to 0.9991" in heads
    assert len(rows) == 9
    assert rows[4].endswith(f"0.9991  {'#' * 20}")
    assert rows[5].endswith("#                     stepped: 0.9991 -> 0.42; another package")


def test_numbers_of_different_backends_are_not_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ask(folder, capsys, "diff", "EPYC", "M4")
    assert "not compared: 1 measurement, by the backend cpu and by coreml" in output
    assert "only in machine 'EPYC': 1 measurement" in output
    assert "no figure differs, of 0" in output


def test_two_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ask(folder, capsys, "diff", f"{4:032x}", f"{5:032x}")
    assert "another package in 1 measurement" in output
    assert "mini:L11  fidelity  cosine.min  0.9991        0.42" in output
    assert output.endswith("1 figure of 2 differ\n")


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(ask(folder, capsys, "--json"))
    assert [model["model"] for model in data["models"]] == ["mini"]
    [turn] = data["steps"]
    assert (turn["subject"], turn["changed"]) == ("mini:L11", ["package"])
    assert turn["steps"][0]["after"] == 0.42
    assert data["skipped"] == [{"file": "mini.jsonl", "number": 20, "why": "is damaged"}]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cosine.mean"], "No line has the figure 'cosine.mean'*; there are cosine.min."),
        (["diff", "M9", "M4"], "'M9' is no run, no commit with a run and no part of a machine's"),
        (["diff", "0000", "M4"], "0000 stands for 9 runs: "),
        (["diff", "M4"], "history diff takes two words"),
        (["a", "b"], "history takes one figure, and was given a b"),
        (["x", "--shards", "L9-L1"], "--shards=L9-L1: "),
    ],
)
def test_errors(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    start, _, end = sentence.partition("*")
    error = ask(folder, capsys, *words, code=1)
    assert error.startswith(f"pytest-ane: {start}")
    assert end in error


def test_no_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no line of history" in ask(tmp_path / "none", capsys, code=1)
