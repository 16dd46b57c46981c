"""`pytest-ane history`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.records.runs import file_of, line, write
from tests.tools.conftest import Says

DAMAGED = "2026-01-09T10-00-00Z-000000000000.jsonl"
MAC = {"backend": "coreml", "chip": "Apple M4", "os": "macOS 26.1 (25B78)"}
Ask = Callable[..., str]


@pytest.fixture
def ask(says: Says, tmp_path: Path) -> Ask:
    """`ask("cosine.min", code=0)` of the memory in `tmp_path`: the output, or else the error."""
    return lambda *words, code=0: "\n".join(
        says("history", "--history", tmp_path, *words, code=code)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Nine runs, of which the sixth spoils L11, one of them on a Mac; and half a line."""
    runs = range(9)
    cosines = {i: 0.42 if i >= 5 else 0.9991 for i in runs}
    spoilt = {i: {"files": {"L11/weight.bin": "b" * 64}} if i >= 5 else {} for i in runs}
    write(
        tmp_path,
        *(line(i, {"cosine.min": 0.9995}, subject="mini:L01") for i in runs),
        *(line(i, {"cosine.min": cosines[i]}, subject="mini:L11", **spoilt[i]) for i in runs),
        line(8, {"cosine.min": 0.9992}, subject="mini:L01", **MAC),
    )
    with file_of(tmp_path, 8).open("a") as file:
        file.write('{"format":1,"run"')
    return tmp_path


def test_the_overview_names_the_commit_and_the_shard(folder: Path, ask: Ask) -> None:
    note, heads, row, _, _, _, step = ask().splitlines()
    assert note == f"note: 1 line skipped: {DAMAGED}:5 is damaged"
    assert heads.split() == ["model", "lines", "runs", "commits", "first", "last", "machines"]
    assert row.split()[:6] == ["mini", "19", "9", "9", "2026-01-01", "2026-01-09"]
    assert step.split()[:3] == ["000000000", "mini:L11", "fidelity"]
    assert "0.9991 -> 0.42" in step
    assert step.endswith("another package")


def test_the_overview_counts_what_was_asked_for(folder: Path, ask: Ask) -> None:
    """L11 has nine lines of the nineteen, all of the CPU."""
    _, _, row, *_ = ask("--shards", "L11").splitlines()
    assert row.split()[:3] == ["mini", "9", "9"]
    assert "macOS" not in row
    write(folder, line(9, {"size": 1.0}, gate="compression", subject="big:L01"))
    _, _, row, empty, *_ = ask("--gate", "compression").splitlines()
    assert row.split()[:3] == ["big", "1", "1"]
    assert not empty


def test_a_figure_over_commits(folder: Path, ask: Ask) -> None:
    output = ask("cosine.min", "--shards", "L11", "--gate", "fidelity")
    title, _, *rows = output.splitlines()[1:]
    assert title == "mini:L11 fidelity cosine.min on cpu:"
    assert len(rows) == 9
    assert rows[4].endswith("0.9991")
    assert rows[5].endswith("stepped: 0.9991 -> 0.42; another package")


def test_numbers_of_different_backends_are_not_compared(folder: Path, ask: Ask) -> None:
    output = ask("diff", "EPYC", "M4")
    assert "not compared: 1 measurement, by the backend cpu and by coreml" in output
    assert "AMD EPYC against Apple M4\n" in output
    assert "only in AMD EPYC: 1 measurement" in output
    assert "0 figures of 0 differ" in output


def test_two_runs(folder: Path, ask: Ask) -> None:
    output = ask("diff", f"{4:032x}", f"{5:032x}")
    assert "another package in 1 measurement" in output
    assert "mini:L11  fidelity  cosine.min  0.9991        0.42" in output
    assert output.endswith("1 figure of 2 differ")


def test_words_that_select_the_same_lines(folder: Path, ask: Ask) -> None:
    """By the same or by other names; then nothing can differ."""
    assert ask("diff", "amd", "x86", code=1).splitlines()[-1] == (
        "pytest-ane: history diff: 'amd' (AMD EPYC) and 'x86' (Linux x86_64) select the same "
        "lines; name two runs, commits, machines or systems that differ."
    )
    run, last = f"{4:032x}", f"{8:032x}"
    assert "select the same lines" in ask("diff", run, run, code=1)
    # The newest measurements of the machine are those of this run.
    assert "select the same lines" in ask("diff", "AMD", last, "--shards", "L11", code=1)


def test_names_that_match_are_all_named(tmp_path: Path, ask: Ask) -> None:
    systems = enumerate(("macOS 26.1", "macOS 26.2", "macOS 27.0"))
    write(tmp_path, *(line(i, {"x": i + 1.0}, os=os) for i, os in systems))
    output = ask("diff", "MACOS 26", "macos 27")
    assert output.startswith("macOS 26.1, macOS 26.2 against macOS 27.0\n")
    assert "x       2                       3\n" in output
    # A word stands in one name, never in two beside each other.
    assert "'EPYC|' is no run" in ask("diff", "EPYC|", "27", code=1)


def test_sides_without_such_a_line(tmp_path: Path, ask: Ask) -> None:
    write(tmp_path, *(line(i, {"x": 1.0}) for i in range(2)), line(2, {"x": 1.0}, gate="hazards"))
    error = ask("diff", f"{0:032x}", f"{1:032x}", "--gate", "hazards", code=1)
    assert "Neither run 00000000 nor run 00000000 has a line of this gate" in error


def test_json(folder: Path, ask: Ask) -> None:
    data = json.loads(ask("--json"))
    assert [model["model"] for model in data["models"]] == ["mini"]
    [turn] = data["steps"]
    assert (turn["subject"], turn["changed"]) == ("mini:L11", ["package"])
    assert turn["steps"][0]["after"] == 0.42
    assert data["skipped"] == [{"file": DAMAGED, "number": 5, "why": "is damaged"}]


@pytest.mark.parametrize(
    ("words", "start", "end"),
    [
        (["cosine.mean"], "No line that was asked for has the figure 'cosine.mean'; of 1 there ",
         "are cosine.min."),
        (["--shards", "nope"], "--shards: 'nope' matches no shard or model in ",
         "; there are: L01, L11."),
        (["--shards", "L11,mini:L2"], "--shards: 'mini:L2' matches no ",
         "; nearest: mini:L11, mini:L01."),
        (["--shards", ","], "--shards: '' matches no shard or model", ""),
        (["--gate", "nope"], "--gate: ", " has no line of the gate 'nope'; there are: fidelity."),
        (["judge", "--gate", "fidelty"], "--gate: ", " 'fidelty'; nearest: fidelity."),
        (["diff", "M9", "M4"], "'M9' is no run, no commit with a run and no part of a machine's",
         ""),
        (["diff", "0000", "M4"], "0000 stands for 9 runs: ", ""),
        (["diff", "M4"], "history diff takes two words", ""),
        (["a", "b"], "history takes one figure, and was given a b", ""),
        (["x", "--shards", "L9-L1"], "--shards=L9-L1: ", ""),
    ],
)  # fmt: skip
def test_errors(folder: Path, ask: Ask, words: list[str], start: str, end: str) -> None:
    error = ask(*words, code=1).splitlines()[-1]
    assert error.startswith(f"pytest-ane: {start}")
    assert end in error


def test_a_part_of_many_figures_is_no_list_of_all(tmp_path: Path, ask: Ask) -> None:
    write(tmp_path, line(0, dict.fromkeys("abcde", 1.0)), line(0, {"f": 1.0}, gate="hazards"))
    assert ask("xyz", code=1).endswith("of 6 there are a, b, c, d.")
    assert ask("a", "--gate", "hazards", code=1).endswith("of 1 there are f.")


def test_a_gate_and_a_shard_that_have_no_line_together(tmp_path: Path, ask: Ask) -> None:
    write(tmp_path, line(0, {"x": 1.0}), line(0, {"x": 1.0}, gate="behaviour", subject="mini"))
    error = ask("--gate", "behaviour", "--shards", "L01", code=1)
    assert "is of both --gate behaviour and --shards L01; leave out one of them." in error


def test_no_history(ask: Ask) -> None:
    assert "holds no record of a run" in ask(code=1)
