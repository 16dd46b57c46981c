"""A run in a file, and the command that repeats it."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.records.record import Record, sealed
from pytest_ane.records.run import Facts, RunFile
from pytest_ane.report.formats import read_document
from pytest_ane.report.run import Row, Run, against, read_run, run_of
from tests.hostile import HOSTILE, check_lines
from tests.records.runs import reread, save_run

FACTS = Facts(
    started="2026-11-24T16:00:00Z",
    header="ane: all",
    seconds=76.5,
    arguments=("--ane-shards=all", "-m", "gate", "-q", "--ane-report=r.html"),
    selection="all",
    manifest="shards.toml",
    digest="0" * 64,
    commit="1" * 40,
    clean=True,
    versions={"pytest-ane": "0.1.0"},
    machine={"backend": "cpu"},
    exit_code=1,
)
ROWS = (
    Row("fidelity", "m:L01", "passed", "cosine 0.99", data={"figures": [], "gate": "fidelity"}),
    Row("fidelity", "m:L02", "error", "no such file", reasons=("No such file.",), test="a.py::b"),
    Row("", "test_mine.py::test_x", "error", "boom", place=("test_mine.py", 18)),
    Row("placement", "m:L01", "unproven", "none", allowed=True, marks=("synthetic",)),
)
RUN = Run("ane: all", ROWS, FACTS)


def test_a_run_comes_back_as_it_was_written() -> None:
    again = reread(RUN)
    assert again.facts == FACTS
    assert again.header == RUN.header
    assert {row.summary: row.status for row in again.rows} == {
        row.summary: row.status for row in ROWS
    }
    of = {row.summary: row for row in again.rows}
    assert of["boom"].place == ("test_mine.py", 18)
    assert of["none"].allowed
    assert of["none"].name == "m:L01 synthetic"
    assert of["no such file"].data is None
    assert of["cosine 0.99"].data is not None


@pytest.mark.drawn
@pytest.mark.slow
@given(text=HOSTILE)
def test_hostile_texts_are_lines(text: str) -> None:
    run = Run(text, (Row("g", text or "t", "failed", text, reasons=(text,), test=text),), FACTS)
    check_lines([row.test for row in reread(run).rows])


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (FACTS.arguments, "pytest --ane-shards=m:L01 -m fidelity"),
        (
            ("--ane-shards", "all", "--ane-manifest", "a b.toml", "-m", "gate", "--ane-record"),
            "pytest --ane-shards=m:L01 '--ane-manifest=a b.toml' --ane-record -m fidelity",
        ),
        (
            ("--ane-package=x.mlpackage", "--ane-package", "y.mlpackage"),
            "pytest --ane-package=x.mlpackage --ane-package=y.mlpackage -m fidelity",
        ),
    ],
)
def test_the_command_that_asks_one_gate_again(arguments: tuple[str, ...], command: str) -> None:
    run = Run("", (), Facts(arguments=arguments, selection="all"))
    assert run.command("m:L01", marker="fidelity") == command


def test_the_command_of_a_model_and_of_the_whole_run() -> None:
    assert RUN.command("m", marker="behaviour") == "pytest '--ane-shards=m:*' -m behaviour"
    assert RUN.command() == "pytest --ane-shards=all -m gate"


def test_a_file_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("[]")
    with pytest.raises(ReportError, match=r"is no file of a run: .*--ane-report=\S*r\.jsonl\.$"):
        read_run(path)


@pytest.mark.parametrize("verdict", [{}, {"status": 1}, {"status": "passed", "summary": []}])
def test_a_damaged_verdict_is_one_sentence(tmp_path: Path, verdict: dict[str, Any]) -> None:
    path = save_run(tmp_path / "r.jsonl", RUN)
    first, second, *lines = path.read_bytes().splitlines(keepends=True)
    data = json.loads(second) | {"verdict": verdict}
    path.write_bytes(b"".join((first, json.dumps(sealed(data)).encode() + b"\n", *lines[:-1])))
    with pytest.raises(ReportError, match=r"the verdict fidelity of m:L01: .* missing or damaged"):
        read_run(path)


def test_a_run_as_the_earlier_one_has_numbers_alone() -> None:
    figures = [
        {"name": "a", "value": 1},
        {"name": "b", "value": "NaN"},
        {"name": "c", "value": "x"},
    ]
    run = Run("", (Row("g", "m:L1", "passed", "", data={"figures": figures}),), FACTS)
    earlier = against(run, run).earlier
    assert earlier.label == "2026-11-24 16:00:00 UTC, commit 111111111"
    (of,) = earlier.figures.values()
    assert of["a"] == 1
    assert math.isnan(of["b"])
    assert len(of) == 2


def test_a_run_is_not_held_against_another_backend_nor_times_against_another_machine() -> None:
    def of(cosine: float, backend: str, chip: str) -> Run:
        facts = {"backend": backend, "chip": chip, "threads": "all"}
        made = (
            Row(gate, "m:L1", "passed", "", data={
                "figures": [{"name": name, "value": cosine}], "provenance": facts})
            for gate, name in (("fidelity", "cosine"), ("throughput", "tok_s"))
        )  # fmt: skip
        return Run("", tuple(made), FACTS)

    def compared(before: Run) -> list[str]:
        made = against(of(0.99, "cpu", "EPYC"), before)
        assert made.before is before
        return [gate for gate, _, _ in made.earlier.figures]

    assert compared(of(0.9, "cpu", "EPYC")) == ["fidelity", "throughput"]
    assert compared(of(0.9, "cpu", "Xeon")) == ["fidelity"]
    assert compared(of(0.9, "coreml", "M4")) == []


def test_a_file_of_others_cannot_hide_its_texts() -> None:
    verdict = {"status": "passed", "summary": "x", "text": "\x1b[31m", "figures": []}
    now = datetime.now(timezone.utc)
    record = Record(gate="g", subject="m:\u202eL1", time=now, verdict=verdict)
    run = run_of(RunFile(Facts(header="\u202e"), (record,)))
    assert (run.header, run.rows[0].subject) == (r"\u202e", r"m:\u202eL1")
    assert run.rows[0].data["text"] == r"\x1b[31m"


@pytest.mark.parametrize("depth", [700, 100_000])
def test_endless_nesting_is_one_sentence(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"x": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(ReportError, match="nested"):
        read_run(path)
    with pytest.raises(ReportError, match="nested too deeply"):
        read_document(path, [], "")
